#include "tests/testing/plan/checked_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/step/task_table.h"

namespace pagoda {
namespace {

constexpr int64_t kHeader = PlannedCase::kHeaderBytes;

std::string name_of(const Task& t) {
  return strf("%s of layer %d, expert %d, microbatch %d, record %lld on device %d",
              task_row(t.kind).name, t.layer, t.expert, t.microbatch, (long long)t.record,
              t.device);
}

RunShape of_rank(RunShape shape, int rank) {
  shape.rank = rank;
  return shape;
}

void generate_on(CheckedRank& rank, const Routing& routing) {
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

}  // namespace

CheckedRank::CheckedRank(const RunShape& of_all, int rank, const StepKind& kind, double room,
                         const RoomOfRanks& of_ranks)
    : shape(of_rank(of_all, rank)), pages(shape) {
  const int devices = shape.own_devices().count;
  budget = {kGiB, kGiB, std::vector<int64_t>(static_cast<size_t>(devices), 12345)};
  budget.device_updates = of_ranks.states;
  const MemoryPlan roomy = plan_memory(shape, pages, budget, kHeader).take();
  int64_t host_all = 0;
  const std::vector<int64_t> here = pages_here(shape, pages);
  for (size_t c = 0; c < here.size(); ++c) host_all += here[c] * pages.classes[c].page_bytes;
  const int64_t all =
      *std::max_element(roomy.device_slot_bytes.begin(), roomy.device_slot_bytes.end());
  budget.device_bytes = budget_between(roomy.min_device_bytes, 12345 + all, room);
  budget.host_bytes = budget_between(roomy.min_host_bytes, host_all, room);
  budget = of_ranks.of(budget);
  memory = plan_memory(shape, pages, budget, kHeader).take();
  skip_untouched = kind.skip_untouched;
}

void CheckedRank::begin() {
  shape = seated(shape, memory);
  run = std::make_unique<DryRun>(
      shape, pages, memory.classes, memory.state_on_device,
      Ledger(skip_untouched, 0, std::vector<int64_t>(shape.records.size(), 0)));
  replay = std::make_unique<Replay>(&pages, start());
  made = validator();
}

std::unique_ptr<PlanValidator> CheckedRank::validator() const {
  return std::make_unique<PlanValidator>(&shape, &pages, memory, budget, kHeader, start());
}

void CheckedRank::take(const StepPiece& piece) {
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

void CheckedRank::discard_gradients() {
  for (const int64_t record : run->touched()) {
    if (!shape.is_home(record)) continue;
    replay->discard(pages.gradient(record));
    made->discard(pages.gradient(record));
  }
}

CheckedRanks::CheckedRanks(std::mt19937& random, int ranks, int devices, const StepKind& kind,
                           double room) {
  shape_ = random_shape(random, devices, {kind.stages, kind.order});
  divide_into_ranks(random, ranks, shape_);
  make(kind, room);
}

CheckedRanks::CheckedRanks(const RunShape& shape, const StepKind& kind, double room)
    : shape_(shape) {
  make(kind, room);
}

void CheckedRanks::each(const Each& act) {
  for (auto& rank : ranks_) act(*rank);
}

void CheckedRanks::train(const Routing& routing, bool skip) {
  step(
      [&](CheckedRank& rank) {
        const auto take = [&](const StepPiece& piece) { rank.take(piece); };
        rank.run->train(routing, take, skip);
      },
      true);
  if (skip) each([](CheckedRank& rank) { rank.discard_gradients(); });
}

void CheckedRanks::evaluate(const Routing& routing) {
  step(
      [&](CheckedRank& rank) {
        rank.run->drain([&](const StepPiece& piece) { rank.take(piece); });
      },
      false);
  step(
      [&](CheckedRank& rank) {
        rank.run->evaluate(routing, [&](const StepPiece& piece) { rank.take(piece); });
      },
      false);
}

void CheckedRanks::generate(const Routing& routing) {
  step([&](CheckedRank& rank) { generate_on(rank, routing); }, false);
}

void CheckedRanks::expect_valid() {
  each([](CheckedRank& rank) {
    EXPECT_EQ(first_fault(rank.made->faults()), "") << "rank " << rank.shape.rank;
    for (int d = 0; d < rank.shape.own_devices().count; ++d) {
      EXPECT_LE(rank.replay->peak_bytes(Place::on_device(d)), rank.memory.device_slot_bytes[d]);
    }
    EXPECT_LE(rank.replay->peak_bytes(Place::host()), rank.memory.host_slot_bytes);
    rank.replay->residency().check_invariants();
  });
}

void CheckedRanks::make(const StepKind& kind, double room) {
  kind.apply_to(shape_);
  for (int d = 0; d < shape_.devices && kind.seats_by_step; ++d) {
    shape_.seat_speeds.push_back(1 + d % 3);
  }
  const auto plan = [&](const RoomOfRanks& of_ranks) {
    ranks_.clear();
    for (int r = 0; r < shape_.ranks(); ++r) {
      ranks_.push_back(std::make_unique<CheckedRank>(shape_, r, kind, room, of_ranks));
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
  each([](CheckedRank& rank) { rank.begin(); });
}

void CheckedRanks::step(const Each& act, bool complete) {
  each([&](CheckedRank& rank) {
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

}  // namespace pagoda
