// Sums of experts' gradients on their way between copies, under the simulator's clock: beside what
// is computed, and both ways at once; and what zebra's clock takes them to take.
#include <gtest/gtest.h>

#include <utility>

#include "plan/forecast/simulator.h"
#include "plan/memory/memory_plan.h"
#include "plan/step/step_schedule.h"
#include "plan/zebra/run_times.h"
#include "tests/testing/plan/random_plan.h"

namespace pagoda {
namespace {

constexpr int64_t kExperts = 4, kRows = 16;  // of an expert and a microbatch

// Two devices, each with a copy of a layer's four experts, and each the home of two of them.
RunShape two_copies(int64_t shards, int64_t group_blocks) {
  RunShape shape;
  shape.num_layers = 1;
  shape.is_moe = {1};
  shape.num_experts = kExperts;
  shape.hidden_size = 16;
  shape.experts_per_token = 1;
  shape.microbatches = shards;
  shape.microbatch_tokens = kExperts * kRows;
  shape.row_block = kRows;
  shape.group_blocks = group_blocks;
  shape.sums = {1, shards, shards};
  shape.devices = 2;
  for (int64_t s = 0; s < shards; ++s) shape.shard_device.push_back(2 * s < shards ? 0 : 1);
  shape.records = {{1}, {1, 0}};
  shape.layer_record = {1};
  for (int64_t e = 0; e < kExperts; ++e) shape.records.push_back({1000, 0, e});
  shape.records.push_back({1});
  divide_into_copies(2, shape);
  return shape;
}

// An expert's rows of a step take a second on each device in the backward, and its sum a second on
// its way. Dense records have a thousandth as many elements, and nothing else takes time.
double step_s(const RunShape& shape) {
  MachineProfile profile;
  profile.cores = 100;
  const int64_t rows = kRows * shape.microbatches / shape.devices;
  profile.of(TaskKind::kExpertBackward).unit_s = 1 / static_cast<double>(rows);
  profile.wire = {0, 1 / 4000.0, 0};
  const PageTable pages(shape);
  const MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(2, 0)};
  const MemoryPlan memory = plan_memory(shape, pages, budget, 0).take();
  const StepPlan plan(shape, pages, {});
  StepSchedule schedule(&plan, nullptr, nullptr, PassExtent::kStep);
  Simulator simulator(&shape, &pages, profile, all_on_disk(shape, pages, memory.classes));
  const auto routing = [&](int64_t, Microbatches of) {
    return LayerRouting(static_cast<size_t>(of.count), std::vector<int64_t>(kExperts, kRows));
  };
  walk(schedule, routing, [&](const StepPiece& piece) { simulator.run(piece); });
  simulator.end_step();
  return simulator.finish().step_s.front();
}

// Each wave has an expert on both devices, whose sum travels while the next ones are computed:
// four seconds, and one for the last. A device has three pages for sums, two of which an expert
// needs at its home.
TEST(SimulatedCopies, SumsTravelBesideWhatIsComputed) {
  const RunShape shape = two_copies(2, 1);
  ASSERT_EQ(PageTable::expert_sum_pages(shape), 3);
  EXPECT_NEAR(step_s(shape), 4 + 1, 0.01);
}

// All four are computed in one wave. Then each device sends the sums of two, which it has added up
// from two shards each, while it gets those of the others.
TEST(SimulatedCopies, SumsGoBothWaysAtOnce) { EXPECT_NEAR(step_s(two_copies(4, 8)), 4 + 2, 0.01); }

// A copy's device that attends has one beside it with the copy's experts. Each of these two is the
// home of two experts, whose sums come from the other, a second each, in a process or from rank to
// rank.
TEST(SimulatedCopies, ZebrasClockKnowsWhatComesToAHome) {
  RunShape shape = two_copies(2, 1);
  shape.zebra = true;
  shape.devices = 4;
  shape.shard_device = {0, 2};
  shape.copies.devices = {0, 0, 1, 1};
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto record = static_cast<size_t>(shape.expert(0, e));
    shape.copies.seats[0][record] = 1;
    shape.copies.seats[1][record] = 3;
    shape.records[record].device = e % 2 == 0 ? 1 : 3;
  }
  MachineProfile profile;
  profile.wire = {0, 1 / 4000.0, 0};
  EXPECT_DOUBLE_EQ(run_times(shape, profile).sums->experts_s, 2);
  profile.network = std::exchange(profile.wire, {0, 0, 0});
  shape.device_rank = {0, 0, 1, 1};
  EXPECT_DOUBLE_EQ(run_times(shape, profile).sums->experts_s, 2);
}

}  // namespace
}  // namespace pagoda
