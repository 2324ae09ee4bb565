// Steps of several ranks, each with devices, a host and a page file of its own: every rank makes
// the same tasks, and those of all of them keep every rule of the validator, at random assignments
// of devices and records. Lists that are broken on purpose break it.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>

#include "plan/step/task_table.h"
#include "tests/testing/plan/planned_case.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

constexpr uint32_t kAssignments = kUnderSanitizer ? 100 : 400;
constexpr int64_t kHeader = PlannedCase::kHeaderBytes;

std::string name_of(const Task& t) {
  return strf("%s of layer %d, expert %d, microbatch %d, record %lld on device %d",
              task_row(t.kind).name, t.layer, t.expert, t.microbatch, (long long)t.record,
              t.device);
}

int64_t count(const TaskList& tasks, TaskKind kind) {
  return std::count_if(tasks.begin(), tasks.end(),
                       [kind](const Task& task) { return task.kind == kind; });
}

bool is_guess(const Task& task) { return task.kind == TaskKind::kPrefetch; }

bool computes_experts(const Task& task) {
  return task.kind == TaskKind::kExpert || task.kind == TaskKind::kExpertBackward;
}

bool comes_to_guest(const Task& task) {
  return task.kind == TaskKind::kReceivePage && task.expert >= 0;
}

// Weights of experts that come while another layer's experts have yet to compute.
int64_t count_ahead(const TaskList& tasks) {
  int64_t ahead = 0;
  for (auto task = tasks.begin(); task != tasks.end(); ++task) {
    if (!comes_to_guest(*task)) continue;
    const auto next = std::find_if(task, tasks.end(), computes_experts);
    ahead += next != tasks.end() && next->layer != task->layer;
  }
  return ahead;
}

// One rank of a run: its plan, and what its residency makes of it.
struct PlannedRank {
  PlannedRank(const RunShape& of_all, int rank, const StepKind& kind, double room,
              const RoomOfRanks& of_ranks)
      : shape(of_rank(of_all, rank)), pages(shape) {
    const int devices = shape.own_devices().count;
    budget = {kGiB, kGiB, std::vector<int64_t>(static_cast<size_t>(devices), 12345)};
    budget.device_updates = of_ranks.states;
    const MemoryPlan roomy = plan_memory(shape, pages, budget, kHeader).take();
    int64_t host_all = 0;
    const std::vector<int64_t> here = pages_here(shape, pages);
    for (size_t c = 0; c < here.size(); ++c) host_all += here[c] * pages.classes[c].page_bytes;
    const int64_t all = *std::max_element(roomy.device_slot_bytes.begin(),
                                          roomy.device_slot_bytes.end());
    budget.device_bytes = budget_between(roomy.min_device_bytes, 12345 + all, room);
    budget.host_bytes = budget_between(roomy.min_host_bytes, host_all, room);
    budget = of_ranks.of(budget);
    memory = plan_memory(shape, pages, budget, kHeader).take();
    skip_untouched = kind.skip_untouched;
  }
  static RunShape of_rank(RunShape shape, int rank) {
    shape.rank = rank;
    return shape;
  }
  // Once all ranks agree where updates are made, and whether rows are read in place.
  void begin() {
    shape = seated(shape, memory);
    run = std::make_unique<DryRun>(
        shape, pages, memory.classes, memory.state_on_device,
        Ledger(skip_untouched, 0, std::vector<int64_t>(shape.records.size(), 0)));
    replay = std::make_unique<Replay>(&pages, start());
    made = validator();
  }
  Residency start() const { return all_on_disk(shape, pages, memory.classes); }
  std::unique_ptr<PlanValidator> validator() const {
    return std::make_unique<PlanValidator>(&shape, &pages, memory, budget, kHeader, start());
  }
  // Places the rank's tasks and checks all. Appends all tasks but guesses.
  void take(const StepPiece& piece) {
    foresee(piece, *replay);
    for (const Task& task : piece.all_tasks()) {
      if (!is_guess(task)) certain.push_back(task);
      if (!runs_here(shape, task)) {
        made->see(task);
        continue;
      }
      PlacedTask placed = place(*replay, with_own_places(shape, task));
      placed.task = task;
      made->check(task, placed.moves, placed.slots);
      if (records) own.push_back(std::move(placed));
    }
    if (records) all.insert(all.end(), piece.all_tasks().begin(), piece.all_tasks().end());
  }
  void discard_gradients() {
    for (const int64_t record : run->touched()) {
      if (!shape.is_home(record)) continue;
      replay->discard(pages.gradient(record));
      made->discard(pages.gradient(record));
    }
  }

  RunShape shape;
  PageTable pages;
  MemoryBudget budget;
  MemoryPlan memory;
  bool skip_untouched = false;
  std::unique_ptr<DryRun> run;
  std::unique_ptr<Replay> replay;
  std::unique_ptr<PlanValidator> made;
  TaskList certain;  // tasks of a step
  bool records = false;
  std::deque<PlacedTask> own;  // if it records
  TaskList all;
};

class PlannedRanks {
 public:
  PlannedRanks(std::mt19937& random, int ranks, int devices, const StepKind& kind, double room) {
    shape_ = random_shape(random, devices, {kind.stages, kind.order});
    divide_into_ranks(random, ranks, shape_);
    make(kind, room);
  }
  PlannedRanks(const RunShape& shape, const StepKind& kind, double room) : shape_(shape) {
    make(kind, room);
  }

  using Each = std::function<void(PlannedRank&)>;
  void each(const Each& act) {
    for (auto& rank : ranks_) act(*rank);
  }
  void train(const Routing& routing, bool skip) {
    step([&](PlannedRank& rank) {
      const auto take = [&](const StepPiece& piece) { rank.take(piece); };
      rank.run->train(routing, take, skip);
    }, true);
    if (skip) each([](PlannedRank& rank) { rank.discard_gradients(); });
  }
  void evaluate(const Routing& routing) {
    step([&](PlannedRank& rank) {
      rank.run->drain([&](const StepPiece& piece) { rank.take(piece); });
    }, false);
    step([&](PlannedRank& rank) {
      rank.run->evaluate(routing, [&](const StepPiece& piece) { rank.take(piece); });
    }, false);
  }
  // A pass of generation.
  void generate(const Routing& routing) {
    step([&](PlannedRank& rank) { generate(rank, routing); }, false);
  }

  const RunShape& shape() const { return shape_; }
  std::vector<std::unique_ptr<PlannedRank>>& ranks() { return ranks_; }
  void expect_valid() {
    each([](PlannedRank& rank) {
      EXPECT_EQ(first_fault(rank.made->faults()), "") << "rank " << rank.shape.rank;
      for (int d = 0; d < rank.shape.own_devices().count; ++d) {
        EXPECT_LE(rank.replay->peak_bytes(Place::on_device(d)), rank.memory.device_slot_bytes[d]);
      }
      EXPECT_LE(rank.replay->peak_bytes(Place::host()), rank.memory.host_slot_bytes);
      rank.replay->residency().check_invariants();
    });
  }

 private:
  void make(const StepKind& kind, double room) {
    kind.apply_to(shape_);
    for (int d = 0; d < shape_.devices && kind.seats_by_step; ++d) {
      shape_.seat_speeds.push_back(1 + d % 3);
    }
    const auto plan = [&](const RoomOfRanks& of_ranks) {
      ranks_.clear();
      for (int r = 0; r < shape_.ranks(); ++r) {
        ranks_.push_back(std::make_unique<PlannedRank>(shape_, r, kind, room, of_ranks));
      }
    };
    const auto all = [&](bool MemoryPlan::*has_room) {
      return std::all_of(ranks_.begin(), ranks_.end(),
                         [&](const auto& rank) { return rank->memory.*has_room; });
    };
    plan({});
    RoomOfRanks of_ranks;
    of_ranks.states = all(&MemoryPlan::state_on_device);
    of_ranks.guests_too = all(&MemoryPlan::weights_travel);
    plan(of_ranks);
    shape_.in_place = all(&MemoryPlan::in_place);
    plan(of_ranks);
    each([](PlannedRank& rank) { rank.begin(); });
  }
  static void generate(PlannedRank& rank, const Routing& routing) {
    RunShape one = rank.shape;
    one.set_microbatches(1);
    one.records = rank.shape.records;
    const StepPlan plan(one, rank.pages, {.training = false, .generating = true});
    ExpertForecast forecast(one, rank.pages, rank.memory.classes);
    WeightCopies copies(one);
    StepSchedule schedule(&plan, nullptr, &forecast, PassExtent::kForward, &copies);
    const auto routing_of = [&](int64_t layer, Microbatches microbatches) {
      return layer_routing(routing, layer, microbatches);
    };
    walk(schedule, routing_of, [&](const StepPiece& piece) {
      rank.take(piece);
      copies.account(piece.all_tasks());
    });
  }
  void step(const Each& act, bool complete) {
    each([&](PlannedRank& rank) {
      rank.certain.clear();
      rank.made->begin_step();
      act(rank);
      rank.made->end_step(complete);
      const TaskList& of_first = ranks_[0]->certain;
      ASSERT_EQ(rank.certain.size(), of_first.size());
      const auto [own, first] =
          std::mismatch(rank.certain.begin(), rank.certain.end(), of_first.begin());
      if (own != rank.certain.end()) {
        FAIL() << "rank " << rank.shape.rank << ": " << name_of(*own)
               << "\nrank 0: " << name_of(*first);
      }
    });
  }

  RunShape shape_;
  std::vector<std::unique_ptr<PlannedRank>> ranks_;
};

TEST(Ranks, MakeTheSameTasksAndKeepEveryRule) {
  int64_t page_transfers = 0, resent = 0, in_stages = 0, in_copies = 0;
  for (uint32_t seed = 1; seed <= kAssignments; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StepKind kind;
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.options.whole_layers = random() % 6 == 0;
    kind.options.microbatch_major = random() % 6 == 0;
    kind.options.padded_experts = random() % 6 == 0;
    kind.pinned_share = random() % 4 == 0 ? 0.5 : 0;
    kind.group_blocks = 1 + seed % 4;
    if (seed % 2 == 0) kind.kept_rows = int64_t{1} << seed % 12;
    const bool away =
        kind.options.same_blocks() && !kind.options.whole_layers && kind.pinned_share == 0;
    kind.seats_by_step = random() % 2 == 0 && away;
    if (away) kind.sharing = static_cast<Sharing>(seed % 5 % 3);
    // Stages may begin anywhere among the ranks' devices.
    if (seed % 3 == 0 && !kind.options.microbatch_major && !kind.options.padded_experts) {
      kind.stages = static_cast<int>(2 + seed / 3 % 3);
      kind.order = static_cast<PipelineOrder>(seed / 9 % 3);
      kind.zebra = seed / 27 % 2 == 0;
      kind.lags = {1, static_cast<int32_t>(seed % 2), 1};
      kind.seats_by_step = false;
      kind.sharing = Sharing::kRows;
    }
    if (seed % 4 < 2 && kind.options.same_blocks() && kind.pinned_share == 0) {
      kind.copies = static_cast<int>(2 + seed / 4 % 2);
      kind.zebra = kind.zebra || seed / 8 % 2 == 0;
      kind.seats_by_step = false;
      kind.sharing = Sharing::kRows;
    }
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    const int devices = static_cast<int>(2 + random() % 4);
    const int ranks = static_cast<int>(2 + random() % static_cast<uint32_t>(devices - 1));
    PlannedRanks run(random, ranks, devices, kind, rooms[random() % 5]);
    for (int step = 0; step < 3; ++step) {
      const bool skip = !kind.eager && random() % 4 == 0;
      run.train(random_routing(random, run.shape()), skip);
      if (random() % 3 == 0) run.evaluate(random_routing(random, run.shape()));
      in_stages += run.shape().stages.several();
      in_copies += run.shape().copies.several();
      page_transfers += count(run.ranks()[0]->certain, TaskKind::kReceivePage);
    }
    if (!kind.options.microbatch_major) {
      RunShape one = run.shape();
      one.set_microbatches(1);
      run.evaluate(random_routing(random, run.shape()));
      run.generate(random_routing(random, one));
      resent += count(run.ranks()[0]->certain, TaskKind::kSendPage);
    }
    run.expect_valid();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(in_stages, kAssignments / 4);
  EXPECT_GT(in_copies, kAssignments / 40);
  EXPECT_GT(page_transfers, kAssignments);
  EXPECT_GT(resent, kAssignments / 20);
}

// Weights that travel, when they are due or a layer ahead, also where all else is on the devices.
TEST(Ranks, GuestsKeepEveryRule) {
  int64_t runs = 0, ahead = 0, in_time = 0, on_devices = 0;
  for (uint32_t seed = 1; runs < kAssignments / 2; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int devices = static_cast<int>(2 + seed % 3), ranks = 2 + devices / 4;
    RunShape shape = random_shape(random, devices);
    if (shape.sums.shards == 1 || shape.moe_layers() == 0) continue;
    shape.sums.expert_shards = shape.sums.shards;
    divide_into_ranks(random, ranks, shape);
    StepKind kind;
    kind.sharing = seed % 3 == 0 ? Sharing::kAuto : Sharing::kData;
    kind.guest_layers = random() % 5;
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.group_blocks = 1 + seed % 4;
    kind.seats_by_step = random() % 2 == 0;
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    PlannedRanks run(shape, kind, rooms[random() % 5]);
    for (int step = 0; step < 3; ++step) {
      run.train(random_routing(random, shape), !kind.eager && random() % 4 == 0);
      const TaskList& tasks = run.ranks()[0]->certain;
      const int64_t came = count_ahead(tasks);
      EXPECT_TRUE(came == 0 || kind.options.prefetch);
      ahead += came;
      in_time += std::count_if(tasks.begin(), tasks.end(), comes_to_guest) - came;
      if (random() % 3 == 0) run.evaluate(random_routing(random, shape));
    }
    run.expect_valid();
    if (testing::Test::HasFailure()) return;
    const PlannedRank& first = *run.ranks()[0];
    on_devices += first.memory.state_on_device && first.shape.weights_travel();
    ++runs;
  }
  EXPECT_GT(ahead, kAssignments);
  EXPECT_GT(in_time, 2 * kAssignments);
  EXPECT_GT(on_devices, kAssignments / 40);
}

// The embedding and the head are at home on any devices, which need not compute with them; the head
// often where the embedding is computed with. 1F1B begins to sum the gradient of that one before
// the head's is complete.
TEST(Ranks, TablesAtHomeAnywhereKeepEveryRule) {
  int64_t runs = 0, away = 0, in_zebra = 0, on_devices = 0, beside = 0;
  for (uint32_t seed = 1; runs < kAssignments / 2; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StepKind kind;
    kind.stages = static_cast<int>(1 + seed % 4);
    kind.order = static_cast<PipelineOrder>(seed / 4 % 3);
    kind.zebra = seed / 12 % 2 == 0;
    kind.lags = {1, static_cast<int32_t>(seed % 2), 1};
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.group_blocks = 1 + seed % 3;
    const int devices = static_cast<int>(2 + random() % 4);
    const int ranks = static_cast<int>(2 + random() % static_cast<uint32_t>(devices - 1));
    RunShape shape = random_shape(random, devices, {kind.stages, kind.order});
    if (kind.stages > 1 && shape.sums.chunks == 1) continue;
    divide_into_ranks(random, ranks, shape);
    const auto any = [&] { return static_cast<int>(random() % static_cast<uint32_t>(devices)); };
    int& embedding = shape.records[static_cast<size_t>(shape.embedding())].device;
    int& head = shape.records[static_cast<size_t>(shape.head())].device;
    if (!shape.tied_embeddings) head = random() % 2 == 0 ? embedding : any();
    embedding = any();
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    PlannedRanks run(shape, kind, rooms[random() % 5]);
    for (int step = 0; step < 3; ++step) {
      run.train(random_routing(random, shape), !kind.eager && random() % 4 == 0);
      if (random() % 3 == 0) run.evaluate(random_routing(random, shape));
    }
    run.expect_valid();
    if (testing::Test::HasFailure()) return;
    const bool is_away = shape.is_away(shape.embedding()) || shape.is_away(shape.head());
    away += is_away;
    in_zebra += is_away && kind.zebra;
    on_devices += is_away && run.ranks()[0]->memory.state_on_device;
    beside += shape.is_away(shape.head()) && shape.computes_with(head, shape.embedding()) &&
              kind.order == PipelineOrder::kOneForwardOneBackward;
    ++runs;
  }
  EXPECT_GT(away, kAssignments / 4);
  EXPECT_GT(in_zebra, kAssignments / 8);
  EXPECT_GT(on_devices, kAssignments / 40);
  EXPECT_GT(beside, kAssignments / 100);
}

// The tasks of all ranks, each with what the rank that runs it made of it.
using MergedStep = std::vector<PlacedTask>;

// Two steps of some ranks at the smallest budgets, as one list.
struct MergedRun {
  explicit MergedRun(const StepKind& kind, ExchangeOrder exchange = ExchangeOrder::kFlat,
                     const std::vector<int>& device_rank = {0, 1, 2, 2}) {
    std::mt19937 random(11);
    RunShape shape;
    do {
      shape = random_shape(random, 4);
    } while (shape.num_layers < 3 || shape.num_experts < 6 || !shape.is_moe[1] ||
             (kind.guest_layers > 0 && shape.moe_layers() < 3) || shape.sums.shards < 3 ||
             std::ssize(shape.attending_devices()) < 3 || (kind.zebra && shape.sums.chunks == 1) ||
             (kind.sharing != Sharing::kRows && shape.sums.expert_shards == 1));
    shape.device_rank = device_rank;
    shape.exchange = exchange;
    ranks = std::make_unique<PlannedRanks>(shape, kind, 0.0);
    for (int step = 0; step < 2; ++step) {
      ranks->each([](PlannedRank& rank) {
        rank.records = true;
        rank.own.clear();
        rank.all.clear();
      });
      ranks->train(random_routing(random, shape), false);
      steps.push_back(merge());
    }
  }
  // What a rank guesses stands before the next task of that rank.
  MergedStep merge() {
    MergedStep merged;
    auto& of = ranks->ranks();
    const auto take = [&](PlannedRank& rank) {
      merged.push_back(std::move(rank.own.front()));
      rank.own.pop_front();
    };
    for (const Task& task : of[0]->all) {
      if (is_guess(task)) continue;
      PlannedRank& rank = *of[static_cast<size_t>(ranks->shape().rank_of(task.device))];
      while (is_guess(rank.own.front().task)) take(rank);
      take(rank);
    }
    return merged;
  }
  PlanFaults faults(const std::vector<MergedStep>& of_steps) {
    PlanFaults found;
    ranks->each([&](PlannedRank& rank) {
      const auto validator = rank.validator();
      for (const MergedStep& step : of_steps) {
        validator->begin_step();
        for (const PlacedTask& t : step) {
          if (runs_here(rank.shape, t.task)) {
            validator->check(t.task, t.moves, t.slots);
          } else {
            validator->see(t.task);
          }
        }
        validator->end_step(true);
      }
      validator->begin_step();
      found.insert(found.end(), validator->faults().begin(), validator->faults().end());
    });
    return found;
  }
  std::unique_ptr<PlannedRanks> ranks;
  std::vector<MergedStep> steps;
};

using Holds = std::function<bool(const PlacedTask&)>;

size_t nth(const MergedStep& step, const Holds& holds, int n = 0) {
  for (size_t i = 0; i < step.size(); ++i) {
    if (holds(step[i]) && n-- == 0) return i;
  }
  CHECK(false, "no such task");
}

Holds is(TaskKind kind) {
  return [kind](const PlacedTask& t) { return t.task.kind == kind; };
}

// Gives the task to a device of another rank.
void move_elsewhere(PlacedTask& t) {
  t.task.device = static_cast<uint8_t>((t.task.device + 2) % 4);
  for (uint8_t i = 0; i < t.task.num_uses; ++i) {
    Place& place = t.task.uses[i].place;
    if (place.tier == Tier::kDevice) place = Place::on_device(t.task.device);
  }
  t.moves.clear();
}

class BrokenRanks : public testing::Test {
 protected:
  static MergedRun& good() {
    static MergedRun run(StepKind{});
    return run;
  }
  void SetUp() override { ASSERT_EQ(first_fault(good().faults(good().steps)), ""); }
  static int rank_of(int device) { return good().ranks->shape().rank_of(device); }
  static Holds across(TaskKind kind) {
    return [kind](const PlacedTask& t) {
      return t.task.kind == kind && rank_of(t.task.device) != rank_of(t.task.peer);
    };
  }
  static void drop(MergedStep& step, size_t i) {
    step.erase(step.begin() + static_cast<int64_t>(i));
  }
  static void expect(PlanRule rule, const char* what,
                     const std::function<void(MergedStep&)>& mutate, MergedRun& run = good()) {
    SCOPED_TRACE(what);
    std::vector<MergedStep> broken = run.steps;
    mutate(broken[1]);
    const PlanFaults faults = run.faults(broken);
    EXPECT_TRUE(std::any_of(faults.begin(), faults.end(), [&](const PlanFault& fault) {
      return fault.rule == rule;
    })) << "the first fault found is " << first_fault(faults);
  }
};

TEST_F(BrokenRanks, CopiesDoNotMatch) {
  expect(PlanRule::kMatched, "a copy is not received",
         [&](MergedStep& step) { drop(step, nth(step, is(TaskKind::kReceivePage))); });
  expect(PlanRule::kMatched, "a copy is not sent",
         [&](MergedStep& step) { drop(step, nth(step, is(TaskKind::kSendPage), 1)); });
  expect(PlanRule::kMatched, "two copies of a channel are received in the other order",
         [&](MergedStep& step) {
           const size_t first = nth(step, is(TaskKind::kReceivePage));
           const Task& t = step[first].task;
           const size_t second = nth(step, [&](const PlacedTask& other) {
             return other.task.kind == TaskKind::kReceivePage && other.task.device == t.device &&
                    rank_of(other.task.peer) == rank_of(t.peer) &&
                    other.task.record != t.record;
           });
           std::swap(step[first].task, step[second].task);
         });
  expect(PlanRule::kMatched, "a copy is short", [&](MergedStep& step) {
    step[nth(step, is(TaskKind::kReceivePage))].task.bytes -= 2;
  });
}

TEST_F(BrokenRanks, RecordsLeaveTheirHome) {
  expect(PlanRule::kHome, "a copy is of before the update", [&](MergedStep& step) {
    const size_t i = nth(step, is(TaskKind::kReceivePage));
    const int64_t record = step[i].task.record;
    for (const TaskKind kind : {TaskKind::kSendPage, TaskKind::kReceivePage}) {
      const auto of_record = [&](const PlacedTask& t) {
        return t.task.kind == kind && t.task.record == record;
      };
      std::erase_if(step, of_record);
    }
  });
  expect(PlanRule::kHome, "an update is made away from home", [&](MergedStep& step) {
    move_elsewhere(step[nth(step, is(TaskKind::kAdam))]);
  });
  expect(PlanRule::kHome, "a copy is updated too", [&](MergedStep& step) {
    const size_t i = nth(step, is(TaskKind::kReceivePage));
    PlacedTask again = step[i];
    again.task.kind = TaskKind::kUpload;
    again.task.uses[0].access = Access::kWrite;
    step.insert(step.begin() + static_cast<int64_t>(i) + 1, again);
  });
  expect(PlanRule::kHome, "a gradient is finished away from home", [&](MergedStep& step) {
    move_elsewhere(step[nth(step, is(TaskKind::kGradient))]);
  });
  expect(PlanRule::kInputs, "an expert is computed by another rank", [&](MergedStep& step) {
    move_elsewhere(step[nth(step, is(TaskKind::kExpertBackward))]);
  });
}

class BrokenGuests : public BrokenRanks {
 protected:
  static MergedRun& guests() {
    static MergedRun run(of_data());
    return run;
  }
  void SetUp() override { ASSERT_EQ(first_fault(guests().faults(guests().steps)), ""); }
  static void expect(PlanRule rule, const char* what,
                     const std::function<void(MergedStep&)>& mutate) {
    BrokenRanks::expect(rule, what, mutate, guests());
  }
  static StepKind of_data() {
    StepKind kind;
    kind.sharing = Sharing::kData;
    kind.group_blocks = 2;
    return kind;
  }
  static bool of_expert(const PlacedTask& t) { return comes_to_guest(t.task); }
  static bool sends_sum(const PlacedTask& t) {
    return t.task.kind == TaskKind::kSend && t.task.expert >= 0 && t.task.elements > 0;
  }
  static bool receives_sum(const PlacedTask& t) {
    return t.task.kind == TaskKind::kReceive && t.task.expert >= 0 && t.task.elements > 0;
  }
  // In the backward, for a device of another rank than its home's.
  static bool computes(const PlacedTask& t) {
    const RunShape& shape = guests().ranks->shape();
    return t.task.kind == TaskKind::kExpertBackward && t.task.rows > 0 &&
           shape.rank_of(t.task.device) != shape.home_rank(t.task.record);
  }
};

// They are computed with what came for them.
TEST_F(BrokenGuests, HaveOtherWeights) {
  expect(PlanRule::kHome, "two experts come to each other's pages", [&](MergedStep& step) {
    Task& first = step[nth(step, of_expert)].task;
    Task& second =
        step[nth(step, [&](const PlacedTask& t) {
          return of_expert(t) && t.task.device == first.device && t.task.record != first.record;
        })].task;
    std::swap(first.uses[0].page, second.uses[0].page);
  });
  expect(PlanRule::kHome, "weights come that were not updated", [&](MergedStep& step) {
    const Task& first = step[nth(step, of_expert)].task;
    const auto page = std::pair(first.record, first.device);
    std::erase_if(step, [&](const PlacedTask& t) {
      const bool of_page =
          t.task.kind == TaskKind::kSendPage || t.task.kind == TaskKind::kReceivePage;
      const bool sends = t.task.kind == TaskKind::kSendPage;
      return of_page && t.task.record == page.first &&
             (sends ? t.task.peer : t.task.device) == page.second;
    });
  });
  expect(PlanRule::kHome, "a guest computes with what its home has", [&](MergedStep& step) {
    Task& guest = step[nth(step, computes)].task;
    guest.uses[0].page = guests().ranks->ranks()[0]->pages.weights(guest.record);
  });
}

// Weights that come ahead take no page that the layer in work needs, and those that stayed until
// the backward are good for it.
TEST_F(BrokenGuests, HaveWeightsOfOtherLayers) {
  StepKind kind = of_data();
  kind.guest_layers = 2;
  static MergedRun run(kind);
  ASSERT_EQ(first_fault(run.faults(run.steps)), "");
  // The first that comes in the forward while experts of a lower layer have yet to compute.
  const auto comes_ahead = [](const MergedStep& step) {
    return nth(step, [&](const PlacedTask& t) {
      if (!of_expert(t) || t.task.phase != Phase::kForward) return false;
      const auto next = std::find_if(
          &t, &step.back(), [](const PlacedTask& other) { return computes_experts(other.task); });
      return next->task.layer < t.task.layer;
    });
  };
  BrokenRanks::expect(
      PlanRule::kHome, "they come to the page of an expert of the layer in work",
      [&](MergedStep& step) {
        Task& ahead = step[comes_ahead(step)].task;
        const Task& needed =
            step[nth(step, [&](const PlacedTask& t) {
              return of_expert(t) && t.task.device == ahead.device && t.task.layer < ahead.layer;
            })].task;
        ahead.uses[0].page = needed.uses[0].page;
      },
      run);
  BrokenRanks::expect(
      PlanRule::kHome, "nothing comes for the backward",
      [&](MergedStep& step) {
        std::erase_if(step, [](const PlacedTask& t) {
          const bool of_page =
              t.task.kind == TaskKind::kSendPage || t.task.kind == TaskKind::kReceivePage;
          return of_page && t.task.phase == Phase::kBackward;
        });
      },
      run);
}

// What they have of a gradient, of their device's own rows, goes to their seat.
TEST_F(BrokenGuests, SumOtherwise) {
  expect(PlanRule::kSumOrder, "a part of a gradient stays away", [&](MergedStep& step) {
    const Task sent = step[nth(step, sends_sum)].task;
    std::erase_if(step, [&](const PlacedTask& t) {
      const bool end = t.task.kind == TaskKind::kSend || t.task.kind == TaskKind::kReceive;
      return end && t.task.elements > 0 && t.task.record == sent.record;
    });
  });
  const RunShape& shape = guests().ranks->shape();
  expect(PlanRule::kInputs, "a guest computes rows of another device's", [&](MergedStep& step) {
    Task& guest = step[nth(step, computes)].task;
    int64_t b = 0;
    while (shape.attending(guest.layer, b) == guest.device) ++b;
    guest.cell = static_cast<int32_t>(shape.sums.cell(b, shape.microbatches));
  });
  expect(PlanRule::kInputs, "a sum is sent to a seat twice", [&](MergedStep& step) {
    const size_t at = nth(step, sends_sum);
    step.insert(step.begin() + static_cast<int64_t>(at), step[at]);
  });
  expect(PlanRule::kMatched, "a sum comes as another expert's", [&](MergedStep& step) {
    const int64_t record = step[nth(step, sends_sum)].task.record;
    const size_t at =
        nth(step, [&](const PlacedTask& t) { return receives_sum(t) && t.task.record == record; });
    step[at].task.record += 1;
  });
  expect(PlanRule::kMatched, "a sum is not received",
         [&](MergedStep& step) { drop(step, nth(step, receives_sum)); });
}

TEST_F(BrokenRanks, RowsDoNotMatch) {
  expect(PlanRule::kMatched, "rows do not cross", [&](MergedStep& step) {
    drop(step, nth(step, across(TaskKind::kSend)));
  });
  expect(PlanRule::kMatched, "rows are not taken", [&](MergedStep& step) {
    drop(step, nth(step, across(TaskKind::kReceive)));
  });
  expect(PlanRule::kMatched, "a channel's rows change places", [&](MergedStep& step) {
    const size_t first = nth(step, across(TaskKind::kReceive));
    const Task& t = step[first].task;
    const size_t second = nth(step, [&](const PlacedTask& other) {
      return other.task.kind == TaskKind::kReceive && other.task.device == t.device &&
             other.task.peer == t.peer && other.task.bytes != t.bytes;
    });
    std::swap(step[first].task.bytes, step[second].task.bytes);
  });
}

TEST_F(BrokenRanks, RowsComeByNoLaneOfTheirs) {
  expect(PlanRule::kInputs, "a device of an equal card has one lane", [&](MergedStep& step) {
    step[nth(step, across(TaskKind::kReceive))].task.lane = Lane::kIn1;
  });
  StepKind zebra;
  zebra.zebra = true;
  zebra.lags = {1, 1, 1};
  static MergedRun apart(zebra);
  ASSERT_EQ(first_fault(apart.faults(apart.steps)), "");
  const auto changed = [](Lane from, Lane to) {
    return [=](MergedStep& step) {
      const auto comes = [&](const PlacedTask& t) {
        return t.task.kind == TaskKind::kReceive && t.task.wave >= 0 && t.task.lane == from;
      };
      step[nth(step, comes)].task.lane = to;
    };
  };
  expect(PlanRule::kInputs, "what experts gave comes behind rows for experts",
         changed(Lane::kInBack, Lane::kIn), apart);
  expect(PlanRule::kInputs, "rows for experts come behind what experts gave",
         changed(Lane::kIn, Lane::kInBack), apart);
}

// Two ranks of two devices, whose rows go by HALO.
TEST_F(BrokenRanks, ParcelsGoElsewhere) {
  static MergedRun halo(StepKind{}, ExchangeOrder::kHalo, {0, 0, 1, 1});
  ASSERT_EQ(first_fault(halo.faults(halo.steps)), "");
  const PageTable& pages = halo.ranks->ranks()[0]->pages;
  const auto of_message = [&](bool leaves) {
    return [&pages, leaves](const PlacedTask& t) {
      const bool sends = t.task.kind == TaskKind::kSend;
      return sends && pages.is_message(t.task.uses[0].page) &&
             (t.task.device / 2 != t.task.peer / 2) == leaves;
    };
  };
  const auto broken = [&](PlanRule rule, const char* what, const auto& mutate) {
    expect(rule, what, mutate, halo);
  };
  broken(PlanRule::kInputs, "a device takes another's parcel", [&](MergedStep& step) {
    step[nth(step, is(TaskKind::kTakeParcel))].task.first_byte += 64;
  });
  broken(PlanRule::kInputs, "a parcel is not taken",
         [&](MergedStep& step) { drop(step, nth(step, is(TaskKind::kTakeParcel))); });
  broken(PlanRule::kInputs, "other bytes are passed on",
         [&](MergedStep& step) { step[nth(step, of_message(false))].task.first_byte += 64; });
  broken(PlanRule::kInputs, "a message is short", [&](MergedStep& step) {
    const size_t i = nth(step, of_message(true));
    step[i].task.bytes -= 2;
    step[i + 1].task.bytes -= 2;
  });
  const auto gathers = [&](const PlacedTask& t) {
    return t.task.kind == TaskKind::kDispatch && pages.is_message(t.task.uses[0].page);
  };
  broken(PlanRule::kInputs, "rows are handed out for another node", [&](MergedStep& step) {
    Task& t = step[nth(step, gathers)].task;
    t.peer = static_cast<uint8_t>((t.peer + 2) % 4);
  });
  broken(PlanRule::kInputs, "parcels overlap", [&](MergedStep& step) {
    const auto second = [&](const PlacedTask& t) { return gathers(t) && t.task.first_byte > 0; };
    step[nth(step, second)].task.first_byte -= 64;
  });
  broken(PlanRule::kMatched, "a message does not arrive",
         [&](MergedStep& step) { drop(step, nth(step, across(TaskKind::kReceive))); });
}

}  // namespace
}  // namespace pagoda
