// HeterMoE's Figure 6 from the tasks that a run would have: three layers of six experts, three
// chunks, a device that attends for 3 s a chunk and one that computes its experts for 4 s, and
// 2/3 s of travel each way.
#include <gtest/gtest.h>

#include "plan/forecast/simulator.h"
#include "plan/memory/memory_plan.h"

namespace pagoda {
namespace {

constexpr int64_t kRows = 16;  // of an expert and a chunk

// `moved`: [layer] experts that the device which attends has.
RunShape figure_6(const std::vector<int>& moved) {
  RunShape shape;
  shape.num_layers = 3;
  shape.is_moe = {1, 1, 1};
  shape.num_experts = 6;
  shape.hidden_size = 16;
  shape.experts_per_token = 1;
  shape.training = false;
  shape.microbatches = 3;
  shape.sums.chunks = 3;
  shape.zebra = true;
  shape.microbatch_tokens = 6 * kRows;
  shape.row_block = kRows;
  shape.group_blocks = 6;
  shape.devices = 2;
  shape.shard_device = {0};
  shape.records.push_back({.num_elements = 1000});
  for (int64_t l = 0; l < 3; ++l) {
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({1000, l});
    for (int64_t e = 0; e < 6; ++e) {
      shape.records.push_back({1000, l, e, e < moved[static_cast<size_t>(l)] ? 0 : 1});
    }
  }
  shape.records.push_back({.num_elements = 1000});
  return shape;
}

double forward_s(const std::vector<int>& moved) {
  const RunShape shape = figure_6(moved);
  const PageTable pages(shape);
  const MemoryPlan memory =
      plan_memory(shape, pages, {kGiB, kGiB, std::vector<int64_t>(2, 0)}, 0).take();
  MachineProfile profile;
  profile.cores = 2;
  profile.of(TaskKind::kAttention).fixed_s = 3;
  profile.of(TaskKind::kExpert).unit_s = 4.0 / (6 * kRows);
  profile.wire.fixed_s = 2.0 / 3;
  const StepPlan plan(shape, pages, {.training = false});
  StepSchedule schedule(&plan, nullptr, nullptr, PassExtent::kLayers);
  Simulator simulator(&shape, &pages, profile, all_on_disk(shape, pages, memory.classes));
  const auto routing = [](int64_t, Microbatches of) {
    return LayerRouting(static_cast<size_t>(of.count), std::vector<int64_t>(6, kRows));
  };
  walk(schedule, routing, [&](const StepPiece& piece) { simulator.run(piece); });
  return simulator.finish().makespan_s;
}

TEST(ZebraSimulated, Figure6) {
  EXPECT_NEAR(forward_s({0, 0, 0}), 40 + 1.0 / 3, 1e-9);
  EXPECT_NEAR(forward_s({0, 1, 1}), 36 + 1.0 / 3, 1e-9);
  EXPECT_NEAR(forward_s({1, 1, 1}), 36 + 1.0 / 3, 1e-9);
}

}  // namespace
}  // namespace pagoda
