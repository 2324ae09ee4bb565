// The simulator's time of the tasks of pipelines, against the recurrence of pipeline schedules
// (tests/testing/plan/pipeline_recurrence.h) and its closed form.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "plan/forecast/simulator.h"
#include "plan/memory/memory_plan.h"
#include "tests/testing/plan/pipeline_recurrence.h"

namespace pagoda {
namespace {

constexpr int64_t kExperts = 4, kRows = 16;  // of an expert and a microbatch

// Stages of one device each. Seconds of a chunk in a layer of the stage.
struct Case {
  PipelineOrder order = PipelineOrder::kOneForwardOneBackward;
  int64_t layers = 2;  // of each stage
  int64_t chunks = 1;
  std::vector<StageSeconds> attention, experts;  // [stage]
  double head_s = 0;
  double adding_s = 0;  // adding two sums of an expert's gradient

  int stages() const { return static_cast<int>(attention.size()); }
};

RunShape shape_of(const Case& c) {
  RunShape shape;
  shape.num_layers = c.layers * c.stages();
  shape.is_moe.assign(static_cast<size_t>(shape.num_layers), 1);
  shape.num_experts = kExperts;
  shape.hidden_size = 16;
  shape.experts_per_token = 1;
  shape.microbatches = shape.sums.chunks = c.chunks;
  shape.microbatch_tokens = kExperts * kRows;
  shape.row_block = kRows;
  shape.group_blocks = kExperts;
  shape.devices = c.stages();
  shape.stages = divide_into_stages(c.stages(), c.order, shape.num_layers, c.stages());
  for (int d = 0; d < c.stages(); ++d) shape.shard_device.push_back(d);
  shape.records.push_back({.num_elements = 1});
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    const int device = shape.stage_of(l);
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({1, l, -1, device});
    for (int64_t e = 0; e < kExperts; ++e) shape.records.push_back({1, l, e, device});
  }
  shape.records.push_back({.num_elements = 1, .device = shape.stage_of(shape.num_layers)});
  return shape;
}

MachineProfile profile_of(const Case& c) {
  MachineProfile profile;
  profile.cores = 2 * c.stages();
  for (size_t s = 0; s < c.attention.size(); ++s) {
    TaskCosts costs;
    const auto of = [&](TaskKind kind) -> Cost& { return costs[static_cast<size_t>(kind)]; };
    of(TaskKind::kAttention).fixed_s = c.attention[s].forward_s;
    of(TaskKind::kAttentionBackward).fixed_s = c.attention[s].backward_s;
    of(TaskKind::kExpert).unit_s = c.experts[s].forward_s / (kExperts * kRows);
    of(TaskKind::kExpertBackward).unit_s = c.experts[s].backward_s / (kExperts * kRows);
    of(TaskKind::kHead).fixed_s = c.head_s;
    of(TaskKind::kAddSums).unit_s = c.adding_s;  // an expert has one element
    profile.device_tasks.push_back(costs);
  }
  return profile;
}

double simulated_s(const Case& c) {
  const RunShape shape = shape_of(c);
  const PageTable pages(shape);
  const MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(shape.devices, 0)};
  const MemoryPlan memory = plan_memory(shape, pages, budget, 0).take();
  const StepPlan plan(shape, pages, {});
  StepSchedule schedule(&plan, nullptr, nullptr, PassExtent::kStep);
  Simulator simulator(&shape, &pages, profile_of(c), all_on_disk(shape, pages, memory.classes));
  const auto routing = [&](int64_t, Microbatches of) {
    return LayerRouting(static_cast<size_t>(of.count), std::vector<int64_t>(kExperts, kRows));
  };
  walk(schedule, routing, [&](const StepPiece& piece) { simulator.run(piece); });
  return simulator.finish().makespan_s;
}

// The recurrence with the seconds of whole stages. REQUIRES: not breadth first.
double recurrence_s(const Case& c) {
  std::vector<StageSeconds> stages;
  for (size_t s = 0; s < c.attention.size(); ++s) {
    const auto layers = static_cast<double>(c.layers);
    stages.push_back({layers * (c.attention[s].forward_s + c.experts[s].forward_s),
                      layers * (c.attention[s].backward_s + c.experts[s].backward_s)});
  }
  stages.back().forward_s += c.head_s;
  const std::vector<double> ends_s = pipeline_ends_s(c.order, stages, c.chunks);
  return *std::max_element(ends_s.begin(), ends_s.end());
}

// Equal stages without a head: (M + PP - 1) (tf + tb), so that (PP - 1) / (M + PP - 1) of the time
// is idle. Breadth first, whose stages have layers in turns: a chunk comes to the next stage a
// layer later, so that PP - 1 times a layer's time is idle in each phase, if there are chunks for
// all.
TEST(PipelineSimulated, EqualStagesIdleAsTheFormulaSays) {
  constexpr double kForward = 3 + 5, kBackward = 7 + 9;  // of a layer
  for (int stages = 2; stages <= 4; ++stages) {
    for (const int64_t chunks : {1, 2, 3, 4, 8, 16}) {
      for (const int64_t layers : {1, 3}) {
        Case c;
        c.layers = layers;
        c.chunks = chunks;
        c.attention.assign(static_cast<size_t>(stages), {3, 7});
        c.experts.assign(static_cast<size_t>(stages), {5, 9});
        SCOPED_TRACE(testing::Message() << stages << " stages of " << layers << " layers, "
                                        << chunks << " chunks");
        const auto expected = static_cast<double>((chunks + stages - 1) * layers) *
                              (kForward + kBackward);
        for (const PipelineOrder order :
             {PipelineOrder::kGpipe, PipelineOrder::kOneForwardOneBackward}) {
          c.order = order;
          EXPECT_NEAR(simulated_s(c), expected, 1e-9 * expected);
        }
        c.order = PipelineOrder::kBreadthFirst;
        if (chunks < stages) continue;
        const auto in_turns = static_cast<double>(chunks * layers + stages - 1);
        EXPECT_NEAR(simulated_s(c), in_turns * (kForward + kBackward), 1e-9 * expected);
      }
    }
  }
}

// All chunks but the first add to the gradients of experts. Adding two sums takes 6 s, so that each
// of 4 experts takes 2 s more: backward passes take 16 s, 24 s, 24 s and 24 s, one behind the other
// on the second stage, and then the first stage computes the last of them.
TEST(PipelineSimulated, LaterChunksAddToGradients) {
  Case c;
  c.order = PipelineOrder::kGpipe;
  c.layers = 1;
  c.chunks = 4;
  c.attention.assign(2, {3, 7});
  c.experts.assign(2, {5, 9});
  c.adding_s = 6;
  EXPECT_NEAR(simulated_s(c), (4 + 1) * 8 + 16 + 3 * 24 + 24, 1e-9);
}

// Unequal stages. The thread that issues goes through one list, so a stage may wait for it.
TEST(PipelineSimulated, UnequalStagesFollowTheRecurrence) {
  constexpr uint32_t kSeed = 71;
  constexpr int kCases = 300;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  const auto draw = [&](int least, int most) {
    return static_cast<double>(least + static_cast<int>(random() % (most - least + 1)));
  };
  std::vector<double> ratios;
  for (int k = 0; k < kCases; ++k) {
    Case c;
    c.order = k % 2 == 0 ? PipelineOrder::kGpipe : PipelineOrder::kOneForwardOneBackward;
    c.layers = static_cast<int64_t>(draw(1, 3));
    c.chunks = static_cast<int64_t>(draw(1, 8));
    c.head_s = draw(0, 6);
    const int stages = static_cast<int>(draw(2, 4));
    for (int s = 0; s < stages; ++s) {
      const double attention = draw(2, 6), experts = draw(2, 6);
      c.attention.push_back({attention, 2 * attention});
      c.experts.push_back({experts, 2 * experts});
    }
    const double simulated = simulated_s(c), expected = recurrence_s(c);
    EXPECT_GE(simulated, expected * (1 - 1e-9)) << k;
    ratios.push_back(simulated / expected);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("simulated / recurrence: median %.4f, nine in ten %.4f, most %.4f\n",
              ratios[kCases / 2], ratios[kCases * 9 / 10], ratios.back());
  EXPECT_LE(ratios[kCases / 2], 1.05);
}

}  // namespace
}  // namespace pagoda
