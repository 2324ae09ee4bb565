// The validator over plans of random runs, which keep every rule, and over the same plans broken on
// purpose: each rule must be seen to be broken.
#include "tests/testing/plan/validator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "tests/testing/plan/random_plan.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

constexpr uint32_t kSeeds = kUnderSanitizer ? 30 : 300;
constexpr int kZebraRuns = kUnderSanitizer ? 50 : 500;
constexpr int64_t kHeaderBytes = 4096;

struct Mode {
  bool eager = false;
  bool skip_untouched = false;
  double pinned_share = 0;
  bool keep_in_host = false;  // any number of pages of each class, as against what is planned
  int64_t group_blocks = 1;
  bool seats_by_step = false;
  bool zebra = false;
  Lags lags = {};
  PlanOptions options;
};

// A run with budgets between the smallest that would do and what holds everything.
struct Case {
  Case(std::mt19937& random, int devices, const Mode& mode, double room)
      : mode(mode), shape(as_said(random_shape(random, devices), mode)), pages(shape) {
    if (mode.seats_by_step && devices > 1) {
      for (int d = 0; d < devices; ++d) shape.seat_speeds.push_back(1 + random() % 4);
    }
    budget = {kGiB, kGiB, std::vector<int64_t>(devices, 12345)};
    auto roomy = plan_memory(shape, pages, budget, kHeaderBytes);
    CHECK(roomy.ok(), "%s", roomy.status().message().c_str());
    const int64_t all = 12345 + *std::max_element(roomy->device_slot_bytes.begin(),
                                                  roomy->device_slot_bytes.end());
    const auto between = [&](int64_t least, int64_t most) {
      return least + static_cast<int64_t>(room * static_cast<double>(std::max<int64_t>(
                                                      0, most - least)));
    };
    int64_t host_all = 0;
    for (const PageTable::Class& c : pages.classes) host_all += c.total_bytes();
    budget.device_bytes = between(roomy->min_device_bytes, all);
    budget.host_bytes = between(roomy->min_host_bytes, host_all);
    memory = plan_memory(shape, pages, budget, kHeaderBytes).take();
    shape = seated(shape, memory);
    for (SlotClass& c : memory.classes) {
      if (mode.keep_in_host) c.host_kept = static_cast<int32_t>(random() % (c.host_slots + 1));
    }
    run = std::make_unique<DryRun>(shape, pages, memory.classes, memory.state_on_device,
                                   Ledger(mode.skip_untouched, 0, steps()));
  }
  static RunShape as_said(RunShape shape, const Mode& mode) {
    shape.options = mode.options;
    shape.eager_adam = mode.eager;
    shape.pinned_share = mode.pinned_share;
    shape.group_blocks = mode.group_blocks;
    shape.zebra = mode.zebra;
    shape.lags = mode.lags;
    return shape;
  }
  std::vector<int64_t> steps() const { return std::vector<int64_t>(shape.records.size(), 0); }
  Residency start() const { return all_on_disk(shape, pages, memory.classes); }
  PlanValidator validator() const {
    return PlanValidator(&shape, &pages, memory, budget, kHeaderBytes, start());
  }

  Mode mode;
  RunShape shape;
  PageTable pages;
  MemoryBudget budget;
  MemoryPlan memory;
  std::unique_ptr<DryRun> run;
};

std::string first_fault(const PlanFaults& faults) {
  return faults.empty() ? "" : strf("rule %d: ", static_cast<int>(faults[0].rule)) + faults[0].what;
}

// Steps, a skipped one, an evaluation: every rule holds all the strategy.
void expect_valid(std::mt19937& random, Case& c) {
  Replay replay(&c.pages, c.start());
  PlanValidator validator = c.validator();
  const auto visit = [&](const StepPiece& piece) {
    foresee(piece, replay);
    for (const Task& task : piece.tasks) {
      const PlacedTask placed = place(replay, task);
      validator.check(task, placed.moves, placed.slots);
    }
  };
  for (int step = 0; step < 4; ++step) {
    const bool skip = !c.mode.eager && random() % 4 == 0;
    validator.begin_step();
    c.run->train(random_routing(random, c.shape), visit, skip);
    validator.end_step(true);
    for (int64_t record : skip ? c.run->touched() : std::vector<int64_t>{}) {
      replay.discard(c.pages.gradient(record));
      validator.discard(c.pages.gradient(record));
    }
    if (random() % 3 != 0) continue;
    validator.begin_step();
    c.run->drain(visit);
    validator.end_step(false);
    validator.begin_step();
    c.run->evaluate(random_routing(random, c.shape), visit);
    validator.end_step(false);
  }
  EXPECT_EQ(first_fault(validator.faults()), "");
  for (int d = 0; d < c.shape.devices; ++d) {
    EXPECT_LE(replay.peak_bytes(Place::on_device(d)), c.memory.device_slot_bytes[d]);
  }
  EXPECT_LE(replay.peak_bytes(Place::host()), c.memory.host_slot_bytes);
  replay.residency().check_invariants();
}

TEST(Validator, RandomRunsKeepEveryRule) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Mode mode;
    mode.eager = random() % 2 == 0;
    mode.skip_untouched = random() % 4 == 0;
    mode.options.prefetch = random() % 4 != 0;
    mode.options.optimizer_at_end = random() % 4 == 0;
    mode.options.whole_layers = random() % 4 == 0;
    mode.options.microbatch_major = random() % 4 == 0;
    mode.pinned_share = random() % 4 == 0 ? 0.5 : 0;
    mode.options.padded_experts = random() % 4 == 0;
    mode.keep_in_host = random() % 2 == 0;
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    const int devices = static_cast<int>(1 + random() % 3);
    mode.group_blocks = seed % 2 == 0 ? 1 : 1 + seed % 7;
    mode.seats_by_step = seed % 3 != 0 && mode.options.same_blocks() &&
                         !mode.options.whole_layers && mode.pinned_share == 0;
    Case c(random, devices, mode, rooms[random() % 5]);
    expect_valid(random, c);
    if (testing::Test::HasFailure()) return;
  }
}

// Chunks that follow each other through the layers, on one device or more, whoever attends.
TEST(Validator, RandomZebraRunsKeepEveryRule) {
  int by_chunks = 0;
  for (uint32_t seed = 1; by_chunks < kZebraRuns; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Mode mode;
    mode.zebra = true;
    mode.eager = random() % 2 == 0;
    mode.skip_untouched = random() % 4 == 0;
    mode.options.prefetch = random() % 4 != 0;
    mode.options.optimizer_at_end = random() % 4 == 0;
    mode.options.whole_layers = random() % 4 == 0;
    mode.pinned_share = random() % 4 == 0 ? 0.5 : 0;
    mode.keep_in_host = random() % 2 == 0;
    mode.group_blocks = seed % 2 == 0 ? 1 : 1 + seed % 7;
    mode.lags.head = static_cast<int32_t>(random() % 4);
    mode.lags.attention = static_cast<int32_t>(random() % 4);
    mode.lags.expert =
        static_cast<int32_t>(random() % (1u + mode.lags.head + mode.lags.attention));
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    const int devices = static_cast<int>(1 + random() % 4);
    Case c(random, devices, mode, rooms[random() % 5]);
    by_chunks += c.shape.rounds() > 1;
    expect_valid(random, c);
    if (testing::Test::HasFailure()) return;
  }
}

// A pass of generation: one microbatch, attention over a cache, logits.
TEST(Validator, GenerationKeepsEveryRule) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Case c(random, static_cast<int>(1 + random() % 2), {}, 0);
    RunShape one = c.shape;
    one.set_microbatches(1);
    const StepPlan plan(one, c.pages, {.training = false, .generating = true});
    ExpertForecast forecast(one, c.pages, c.memory.classes);
    Replay replay(&c.pages, c.start());
    PlanValidator validator(&one, &c.pages, c.memory, c.budget, kHeaderBytes, c.start());
    for (int pass = 0; pass < 5; ++pass) {
      validator.begin_step();
      StepSchedule schedule(&plan, nullptr, &forecast, PassExtent::kForward);
      const Routing routing = random_routing(random, one);
      const auto routing_of = [&](int64_t layer, Microbatches microbatches) {
        return layer_routing(routing, layer, microbatches);
      };
      walk(schedule, routing_of, [&](const StepPiece& piece) {
        foresee(piece, replay);
        for (const Task& task : piece.tasks) {
          const PlacedTask placed = place(replay, task);
          validator.check(task, placed.moves, placed.slots);
        }
      });
      validator.end_step(false);
    }
    EXPECT_EQ(first_fault(validator.faults()), "");
  }
}

// ---- plans broken on purpose ----

using Steps = std::vector<std::vector<PlacedTask>>;

// Two steps in which every layer has experts with and without tokens, at the smallest budgets.
struct Recorded {
  explicit Recorded(bool eager, int64_t group_blocks = 1, int devices = 1, bool zebra = false) {
    std::mt19937 random(7);
    Mode mode;
    mode.eager = eager;
    mode.group_blocks = group_blocks;
    mode.zebra = zebra;
    mode.lags = {1, 1, 1};
    do {
      made = std::make_unique<Case>(random, devices, mode, 0.0);
    } while (made->shape.num_layers < 3 || made->shape.num_experts < 5 || !made->shape.is_moe[1] ||
             made->shape.microbatches < 2 || made->shape.sums.shards < 2 ||
             (zebra && made->shape.rounds() < 2) ||
             std::ssize(made->shape.attending_devices()) < devices);
    Replay replay(&made->pages, made->start());
    for (int step = 0; step < 2; ++step) {
      std::vector<std::vector<int64_t>> layers(made->shape.num_layers);
      for (int64_t l = 0; l < made->shape.num_layers; ++l) {
        if (!made->shape.is_moe[l]) continue;
        layers[l].assign(made->shape.num_experts, 2 * made->shape.row_block - 1);
        layers[l][static_cast<size_t>(step)] = 0;
      }
      std::vector<PlacedTask>& placed = steps.emplace_back();
      made->run->train(Routing(made->shape.microbatches, layers), [&](const StepPiece& piece) {
        for (const Task& task : piece.tasks) placed.push_back(place(replay, task));
      });
    }
  }
  PlanFaults faults(const Steps& broken) const {
    PlanValidator validator = made->validator();
    for (const auto& step : broken) {
      validator.begin_step();
      for (const PlacedTask& t : step) validator.check(t.task, t.moves, t.slots);
      validator.end_step(true);
    }
    return validator.faults();
  }
  std::unique_ptr<Case> made;
  Steps steps;
};

// The n-th task of the second step for which `is` holds.
template <typename Is>
size_t find(const Steps& steps, Is&& is, int n = 0) {
  for (size_t i = 0; i < steps[1].size(); ++i) {
    if (is(steps[1][i]) && n-- == 0) return i;
  }
  CHECK(false, "the plan has no such task");
}

auto of_kind(TaskKind kind) {
  return [kind](const PlacedTask& t) { return t.task.kind == kind; };
}

auto with_move(Move::Kind kind) {
  return [kind](const PlacedTask& t) {
    return std::any_of(t.moves.begin(), t.moves.end(),
                       [&](const Move& move) { return move.kind == kind; });
  };
}

// An optimizer's task that has a gradient, as against one that applies old updates.
bool consumes(const PlacedTask& t) {
  return t.task.kind == TaskKind::kAdam && t.task.num_uses == 3;
}

void erase(Steps& steps, size_t i) {
  steps[1].erase(steps[1].begin() + static_cast<int64_t>(i));
}

void repeat(Steps& steps, size_t i) {
  PlacedTask again = steps[1][i];
  again.moves.clear();
  steps[1].insert(steps[1].begin() + static_cast<int64_t>(i) + 1, again);
}

void expect_broken(PlanRule rule, const char* what, const std::function<void(Steps&)>& mutate,
                   const Recorded& good) {
  SCOPED_TRACE(what);
  ASSERT_EQ(first_fault(good.faults(good.steps)), "");
  Steps broken = good.steps;
  mutate(broken);
  const PlanFaults faults = good.faults(broken);
  const bool found = std::any_of(faults.begin(), faults.end(),
                                 [&](const PlanFault& fault) { return fault.rule == rule; });
  EXPECT_TRUE(found) << "the first fault found is " << first_fault(faults);
}

void expect_broken(PlanRule rule, const char* what, const std::function<void(Steps&)>& mutate,
                   bool eager = false) {
  static const Recorded recorded[2] = {Recorded(false), Recorded(true)};
  expect_broken(rule, what, mutate, recorded[eager]);
}

TEST(Validator, SeesTasksBeforeTheirInputs) {
  for (TaskKind kind :
       {TaskKind::kEmbed, TaskKind::kAttention, TaskKind::kRoute, TaskKind::kIndex,
        TaskKind::kDispatch, TaskKind::kExpert, TaskKind::kCombine, TaskKind::kResidual,
        TaskKind::kHead, TaskKind::kRouteReplay, TaskKind::kDispatchBackward,
        TaskKind::kExpertBackward, TaskKind::kCombineBackward, TaskKind::kRouteBackward,
        TaskKind::kAttentionBackward, TaskKind::kEmbedBackward, TaskKind::kAdam}) {
    const std::string what = strf("without a task of kind %d", static_cast<int>(kind));
    expect_broken(PlanRule::kInputs, what.c_str(),
                  [&](Steps& steps) { erase(steps, find(steps, of_kind(kind))); });
  }
  expect_broken(PlanRule::kInputs, "two combines of a microbatch change places", [](Steps& steps) {
    const auto first = [](const PlacedTask& t) {
      return t.task.kind == TaskKind::kCombine && t.task.microbatch == 0;
    };
    std::swap(steps[1][find(steps, first, 0)].task.wave, steps[1][find(steps, first, 1)].task.wave);
  });
  expect_broken(PlanRule::kInputs, "rows not where they lie in their block", [](Steps& steps) {
    ++steps[1][find(steps, of_kind(TaskKind::kExpert))].task.block_row;
  });
  for (TaskKind kind : {TaskKind::kDispatch, TaskKind::kCombineBackward}) {
    expect_broken(PlanRule::kInputs, "rows of another microbatch", [&](Steps& steps) {
      Task& t = steps[1][find(steps, of_kind(kind))].task;
      t.microbatch = 1 - t.microbatch;
    });
    expect_broken(PlanRule::kInputs, "rows beyond their block",
                  [&](Steps& steps) { ++steps[1][find(steps, of_kind(kind))].task.rows; });
  }
  for (Move::Kind kind : {Move::Kind::kFetch, Move::Kind::kUpload}) {
    expect_broken(PlanRule::kInputs, "a page does not come", [&](Steps& steps) {
      std::erase_if(steps[1][find(steps, with_move(kind))].moves,
                    [&](const Move& move) { return move.kind == kind; });
    });
  }
}

// Groups of several experts, which go together.
TEST(Validator, SeesGroupsThatFallApart) {
  static const Recorded grouped(false, 5);
  const auto joins = [](const PlacedTask& t) { return t.task.joins_next; };
  const auto later_part = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kDispatch && t.task.microbatch > 0;
  };
  const auto later_combine = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kCombineBackward && t.task.microbatch > 0;
  };
  expect_broken(PlanRule::kInputs, "an expert is left out",
                [&](Steps& steps) { erase(steps, find(steps, joins)); }, grouped);
  expect_broken(PlanRule::kInputs, "the last expert is left out",
                [&](Steps& steps) { erase(steps, find(steps, joins) + 1); }, grouped);
  expect_broken(PlanRule::kInputs, "a group ends too early", [&](Steps& steps) {
    steps[1][find(steps, joins)].task.joins_next = false;
  }, grouped);
  expect_broken(PlanRule::kInputs, "experts change places", [&](Steps& steps) {
    const size_t i = find(steps, joins);
    std::swap(steps[1][i].task.block_row, steps[1][i + 1].task.block_row);
    std::swap(steps[1][i].task.first_row, steps[1][i + 1].task.first_row);
  }, grouped);
  expect_broken(PlanRule::kInputs, "a microbatch is not handed out",
                [&](Steps& steps) { erase(steps, find(steps, later_part)); }, grouped);
  expect_broken(PlanRule::kInputs, "a microbatch is not combined",
                [&](Steps& steps) { erase(steps, find(steps, later_combine)); }, grouped);
  expect_broken(PlanRule::kSlots, "an expert's weights take those of another in the group",
                [&](Steps& steps) {
    const size_t i = find(steps, joins);
    PlacedTask& other = steps[1][i + 1];
    const int32_t taken = steps[1][i].slots[0];
    for (Move& move : other.moves) {
      if (move.page == other.task.uses[0].page) move.device_slot = taken;
    }
    other.slots[0] = taken;
  }, grouped);
}

TEST(Validator, SeesSlotsUsedTwice) {
  for (Move::Kind kind : {Move::Kind::kWriteBack, Move::Kind::kDownload}) {
    expect_broken(PlanRule::kSlots, "the only copy is not saved", [&](Steps& steps) {
      for (PlacedTask& t : steps[1]) {
        std::erase_if(t.moves, [&](const Move& move) { return move.kind == kind; });
      }
    });
  }
  // What attention reads and what it makes are of one class.
  for (size_t given : {1, 2}) {
    expect_broken(PlanRule::kSlots, "two pages of a task are given one slot", [&](Steps& steps) {
      PlacedTask& t = steps[1][find(steps, of_kind(TaskKind::kAttention))];
      t.slots[given] = t.slots[3 - given];
    });
  }
}

TEST(Validator, SeesBudgetsExceeded) {
  expect_broken(PlanRule::kBudget, "a slot beyond the last", [](Steps& steps) {
    const size_t i = find(steps, with_move(Move::Kind::kFetch));
    for (Move& move : steps[1][i].moves) move.host_slot += 1000;
  });
  const Recorded recorded(false);
  const Case& c = *recorded.made;
  for (int place = 0; place < 2; ++place) {
    MemoryPlan memory = c.memory;
    (place == 0 ? memory.classes[0].device_slots[0] : memory.classes[0].host_slots) += 100;
    const PlanValidator validator(&c.shape, &c.pages, memory, c.budget, kHeaderBytes, c.start());
    ASSERT_EQ(validator.faults().size(), 1u);
    EXPECT_EQ(validator.faults()[0].rule, PlanRule::kBudget);
  }
}

TEST(Validator, SeesNeedlessMoves) {
  for (Move::Kind kind : {Move::Kind::kWriteBack, Move::Kind::kUpload, Move::Kind::kFetch}) {
    expect_broken(PlanRule::kNeeded, "a move is made twice", [&](Steps& steps) {
      std::vector<Move>& moves = steps[1][find(steps, with_move(kind))].moves;
      const auto at = std::find_if(moves.begin(), moves.end(),
                                   [&](const Move& move) { return move.kind == kind; });
      moves.insert(at, Move(*at));
    });
  }
}

// Blocks of an expert that do not follow one another make its weights come twice.
TEST(Validator, SeesWeightsReadTwice) {
  for (Phase phase : {Phase::kForward, Phase::kBackward}) {
    std::mt19937 random(3);
    std::unique_ptr<Case> c;
    do {
      c = std::make_unique<Case>(random, 1, Mode{}, 0.0);
    } while (!c->shape.is_moe[0] || c->shape.num_experts < 5);
    Replay replay(&c->pages, c->start());
    PlanValidator validator = c->validator();
    const TaskKind kind = phase == Phase::kForward ? TaskKind::kExpert : TaskKind::kExpertBackward;
    std::optional<Task> first;
    validator.begin_step();
    const std::vector layers(c->shape.num_layers, std::vector<int64_t>(c->shape.num_experts, 1));
    c->run->train(Routing(c->shape.microbatches, layers), [&](const StepPiece& piece) {
      for (const Task& task : piece.tasks) {
        Task twice = task;
        if (task.kind == kind && first && task.layer == first->layer && task.expert == 3) {
          twice.kind = TaskKind::kUpload;
          twice.uses[0] = first->uses[0];
          twice.num_uses = 1;
          const PlacedTask placed = place(replay, twice);
          validator.check(twice, placed.moves, placed.slots);
        }
        if (task.kind == kind && !first) first = task;
        const PlacedTask placed = place(replay, task);
        validator.check(task, placed.moves, placed.slots);
      }
    });
    ASSERT_FALSE(validator.faults().empty());
    EXPECT_EQ(validator.faults()[0].rule, PlanRule::kReadOnce) << first_fault(validator.faults());
  }
}

TEST(Validator, SeesAKindInAnothersPhase) {
  expect_broken(PlanRule::kInputs, "residual: in a phase", [](Steps& steps) {
    steps[1][find(steps, of_kind(TaskKind::kResidual), 1)].task.phase = Phase::kBackward;
  });
}

TEST(Validator, SeesGradientsMadeOrConsumedTwiceOrNever) {
  for (bool eager : {false, true}) {
    expect_broken(PlanRule::kGradientOnce, "not made",
                  [](Steps& steps) { erase(steps, find(steps, of_kind(TaskKind::kGradient), 2)); },
                  eager);
    expect_broken(PlanRule::kGradientOnce, "made twice",
                  [](Steps& steps) { repeat(steps, find(steps, of_kind(TaskKind::kGradient), 2)); },
                  eager);
    expect_broken(PlanRule::kGradientOnce, "not given up", [](Steps& steps) {
      steps[1][find(steps, consumes, 1)].task.uses[2].last = false;
    }, eager);
    expect_broken(PlanRule::kGradientOnce, "consumed twice",
                  [](Steps& steps) { repeat(steps, find(steps, consumes, 1)); },
                  eager);
  }
  expect_broken(PlanRule::kGradientOnce, "not consumed", [](Steps& steps) {
    erase(steps, find(steps, consumes, 1));
  });
}

TEST(Validator, SeesRowsThatDoNotArrive) {
  static const Recorded two(false, 2, 2);
  expect_broken(
      PlanRule::kMatched, "rows are received that nobody has sent",
      [](Steps& steps) { erase(steps, find(steps, of_kind(TaskKind::kSend))); }, two);
  expect_broken(
      PlanRule::kMatched, "rows are sent that nobody receives",
      [](Steps& steps) { erase(steps, find(steps, of_kind(TaskKind::kReceive))); }, two);
  expect_broken(
      PlanRule::kMatched, "a receive takes another device's rows",
      [](Steps& steps) {
        Task& t = steps[1][find(steps, of_kind(TaskKind::kReceive))].task;
        std::swap(t.device, t.peer);
      },
      two);
  expect_broken(
      PlanRule::kMatched, "fewer bytes are received",
      [](Steps& steps) { steps[1][find(steps, of_kind(TaskKind::kReceive))].task.bytes -= 2; },
      two);
  expect_broken(
      PlanRule::kInputs, "more bytes than the rows'",
      [](Steps& steps) {
        const size_t i = find(steps, of_kind(TaskKind::kSend));
        steps[1][i].task.bytes += 2;
        steps[1][i + 1].task.bytes += 2;
      },
      two);
}

TEST(Validator, SeesSumsInAnotherOrder) {
  const auto begins = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kRouteBackward && t.task.first;
  };
  expect_broken(PlanRule::kSumOrder, "two sums are not added",
                [](Steps& steps) { erase(steps, find(steps, of_kind(TaskKind::kAddSums))); });
  expect_broken(PlanRule::kSumOrder, "two sums are added twice",
                [](Steps& steps) { repeat(steps, find(steps, of_kind(TaskKind::kAddSums))); });
  expect_broken(PlanRule::kSumOrder, "two sums change places", [](Steps& steps) {
    Task& t = steps[1][find(steps, of_kind(TaskKind::kAddSums))].task;
    std::swap(t.uses[0].page, t.uses[1].page);
  });
  expect_broken(PlanRule::kSumOrder, "a shard begins in the sum of the one before",
                [&](Steps& steps) { steps[1][find(steps, begins, 1)].task.first = false; });
  expect_broken(PlanRule::kSumOrder, "a shard is summed elsewhere", [&](Steps& steps) {
    Task& t = steps[1][find(steps, begins, 1)].task;
    t.uses[t.num_uses - 1].page = steps[1][find(steps, begins, 0)].task.uses[t.num_uses - 1].page;
  });
}

// What a layer's attention adds to a sum comes before others read it, and to the same one.
TEST(Validator, SeesSumsWithoutAttention) {
  expect_broken(PlanRule::kInputs, "attention comes after the addition", [&](Steps& steps) {
    // The first additions of a step are the head's, and a shared expert's have no attention.
    const auto of_layer = [](const PlacedTask& t) {
      const Task& task = t.task;
      return task.kind == TaskKind::kAddSums && task.layer >= 0 && task.first_element == 0;
    };
    const size_t add = find(steps, of_layer);
    size_t i = add;
    while (steps[1][i].task.kind != TaskKind::kAttentionBackward) --i;
    std::rotate(steps[1].begin() + static_cast<int64_t>(i),
                steps[1].begin() + static_cast<int64_t>(i) + 1,
                steps[1].begin() + static_cast<int64_t>(add) + 1);
  });
  expect_broken(PlanRule::kInputs, "a sum lacks an element", [](Steps& steps) {
    --steps[1][find(steps, of_kind(TaskKind::kAddSums))].task.elements;
  });
  expect_broken(PlanRule::kInputs, "a sum begins elsewhere", [](Steps& steps) {
    ++steps[1][find(steps, of_kind(TaskKind::kAddSums))].task.first_element;
  });
}

// Chunks by themselves: sums of experts that are lost, mixed up or taken too soon.
TEST(Validator, SeesChunksThatGoWrong) {
  static const Recorded zebra(false, 2, 2, true);
  const auto goes_on = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kExpertBackward && !t.task.first;
  };
  expect_broken(
      PlanRule::kInputs, "an expert's gradient begins again in a later chunk",
      [&](Steps& steps) {
        Task& t = steps[1][find(steps, goes_on)].task;
        t.first = true;
        t.uses[t.num_uses - 1].access = Access::kCreate;
      },
      zebra);
  expect_broken(
      PlanRule::kInputs, "what it adds to is dropped",
      [&](Steps& steps) {
        Task& t = steps[1][find(steps, goes_on)].task;
        t.uses[t.num_uses - 1].access = Access::kCreate;
      },
      zebra);
  expect_broken(
      PlanRule::kInputs, "chunks of an expert are swapped",
      [&](Steps& steps) {
        Task& t = steps[1][find(steps, goes_on)].task;
        t.first_microbatch = 0;
        Task& before = steps[1][find(steps, of_kind(TaskKind::kExpertBackward))].task;
        before.first_microbatch = static_cast<int32_t>(zebra.made->shape.microbatches) / 2;
      },
      zebra);
  expect_broken(
      PlanRule::kInputs, "a gradient is finished before the last chunk",
      [&](Steps& steps) {
        const size_t last = find(steps, goes_on);
        const int64_t record = steps[1][last].task.record;
        const size_t gradient = find(steps, [&](const PlacedTask& t) {
          return t.task.kind == TaskKind::kGradient && t.task.record == record;
        });
        const PlacedTask early = steps[1][gradient];
        erase(steps, gradient);
        steps[1].insert(steps[1].begin() + static_cast<int64_t>(last), early);
      },
      zebra);
}

// Two devices that both attend.
TEST(Validator, SeesParcelsAndSumsThatGoAstray) {
  static const Recorded two(false, 2, 2);
  expect_broken(
      PlanRule::kInputs, "the second device does not sort its rows",
      [](Steps& steps) {
        erase(steps, find(steps, [](const PlacedTask& t) {
                return t.task.kind == TaskKind::kIndex && t.task.device == 1;
              }));
      },
      two);
  expect_broken(
      PlanRule::kInputs, "an expert is computed away from its seat",
      [](Steps& steps) {
        Task& t = steps[1][find(steps, of_kind(TaskKind::kExpertBackward))].task;
        t.device = static_cast<uint8_t>(1 - t.device);
      },
      two);
  const auto travels = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kSend && t.task.elements > 0;
  };
  for (const TaskKind kind : {TaskKind::kPlaceRows, TaskKind::kPackRows}) {
    expect_broken(
        PlanRule::kInputs, "a parcel is left out",
        [&](Steps& steps) { erase(steps, find(steps, of_kind(kind))); }, two);
    expect_broken(
        PlanRule::kInputs, "a parcel has another's rows",
        [&](Steps& steps) { ++steps[1][find(steps, of_kind(kind))].task.rows; }, two);
    expect_broken(
        PlanRule::kInputs, "a parcel is taken for another device's",
        [&](Steps& steps) {
          Task& t = steps[1][find(steps, of_kind(kind))].task;
          t.peer = t.device;
        },
        two);
  }
  expect_broken(
      PlanRule::kSumOrder, "a sum is not sent",
      [&](Steps& steps) {
        const size_t i = find(steps, travels);
        erase(steps, i + 1);
        erase(steps, i);
      },
      two);
  expect_broken(
      PlanRule::kInputs, "a part of a sum is sent",
      [&](Steps& steps) {
        const size_t i = find(steps, travels);
        steps[1][i].task.bytes -= 4;
        steps[1][i + 1].task.bytes -= 4;
      },
      two);
  expect_broken(
      PlanRule::kInputs, "a page is used where another device has it",
      [](Steps& steps) {
        Task& t = steps[1][find(steps, of_kind(TaskKind::kAttention))].task;
        for (size_t i = 0; i < t.num_uses; ++i) t.uses[i].place.device ^= 1;
      },
      two);
}

TEST(Validator, SeesStateUsedTwice) {
  expect_broken(PlanRule::kStateOnce, "updated twice", [](Steps& steps) {
    const size_t i = find(steps, of_kind(TaskKind::kAdam));
    repeat(steps, i);
    steps[1][i + 1].task.num_uses = 2;
  });
  expect_broken(PlanRule::kStateOnce, "read by something else", [](Steps& steps) {
    const size_t i = find(steps, of_kind(TaskKind::kAdam));
    repeat(steps, i);
    steps[1][i + 1].task.kind = TaskKind::kUpload;
    steps[1][i + 1].task.phase = Phase::kBackward;
    steps[1][i + 1].task.num_uses = 2;
  });
}

}  // namespace
}  // namespace pagoda
