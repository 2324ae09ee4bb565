// Other strategies to spread a step over two kinds of devices: against sums by hand where nothing
// overlaps, and against all divisions of a pipeline's layers.
#include "tests/testing/hetermoe/heterogeneous_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>

namespace pagoda {
namespace {

// Times that are sums of a few terms, each rounded.
constexpr double kRounding = 1e-12;

HeterogeneousStep some_step() {
  HeterogeneousStep step;
  step.layers = 4;
  step.faster = {2, {8, 16}, {6, 12}, 4, 0};
  step.slower = {3, {30, 60}, {9, 18}, 12, 0};
  step.exchange_bytes = 600;
  step.boundary_bytes = 100;
  step.link_bytes_per_s = 100;
  step.latency_s = 0.5;
  return step;
}

TEST(HeterogeneousStepTest, DisaggregatedByHand) {
  const HeterogeneousStep step = some_step();
  // A layer forward: attention 8 / 2, experts 9 / 3, two transfers of 600 / 2 / 100 + .5.
  const double transfers_s = 2 * 3.5;
  const double expected = 4 * (4 + 3 + transfers_s + 8 + 6 + transfers_s) + 2;
  EXPECT_NEAR(disaggregated_step_s(step, 1).value(), expected, kRounding * expected);
  // The same as zebra with one microbatch.
  const ZebraStep zebra = best_zebra(zebra_group(step, 1, 6).value()).take();
  EXPECT_NEAR(zebra.times.makespan_s, expected, kRounding * expected);
}

TEST(HeterogeneousStepTest, ExpertParallelByHand) {
  const HeterogeneousStep step = some_step();
  // All wait for the slower: 30 / 5 and 9 / 5; transfers of 600 / 5 * 4 / 5 / 100 + .5.
  // The backward sends rows once more.
  const double transfers_s = 2 * (0.96 + 0.5);
  const double expected = 4 * (6 + 1.8 + transfers_s + 12 + 3.6 + 1.5 * transfers_s) + 12 / 5.0;
  EXPECT_NEAR(expert_parallel_step_s(step, 1).value(), expected, kRounding * expected);
}

// What comes once a microbatch comes in each; experts' weights only where the experts are.
TEST(HeterogeneousStepTest, CountsWhatComesOnceAMicrobatch) {
  HeterogeneousStep step = some_step();
  for (DeviceKind* kind : {&step.faster, &step.slower}) {
    kind->attention_once = {1, 2};
    kind->experts_once = {3, 6};
    kind->head_once_s = 5;
  }
  const auto more = [&](auto&& seconds_of) { return seconds_of(step) - seconds_of(some_step()); };
  EXPECT_NEAR(more([](const auto& s) { return disaggregated_step_s(s, 1).value(); }),
              4 * (1 + 2 + (3 + 6) / 3.0) + 5, 1e-9);
  EXPECT_NEAR(more([](const auto& s) { return expert_parallel_step_s(s, 1).value(); }),
              4 * (1 + 2 + (3 + 6) / 5.0) + 5, 1e-9);
  const ZebraTimes times = zebra_group(step, 4, 6).value().times;
  const ZebraTimes without = zebra_group(some_step(), 4, 6).value().times;
  EXPECT_NEAR(times.attention.backward_s - without.attention.backward_s, 2, 1e-12);
  EXPECT_NEAR(times.expert.backward_s - without.expert.backward_s, 2, 1e-12);
  EXPECT_NEAR(times.offloaded_expert.forward_s - without.offloaded_expert.forward_s, 1, 1e-12);
  EXPECT_NEAR(times.head_s - without.head_s, 5, 1e-12);
  // One pipeline of one device of each kind, a layer each: both are in the way of a microbatch.
  HeterogeneousStep two = step, plain = some_step();
  for (HeterogeneousStep* s : {&two, &plain}) {
    s->faster.devices = s->slower.devices = 1;
    s->faster.most_layers = s->slower.most_layers = 2;
  }
  EXPECT_NEAR(pipeline_step(two, 1)->step_s - pipeline_step(plain, 1)->step_s,
              4 * (1 + 2 + 3 + 6) + 5, 1e-9);
}

TEST(HeterogeneousStepTest, PartsOverlapTransfersAndExperts) {
  HeterogeneousStep step = some_step();
  step.latency_s = 0;
  const double one = expert_parallel_step_s(step, 1).value();
  const double four = expert_parallel_step_s(step, 4).value();
  EXPECT_LT(four, one);
  const PartedStep best = best_expert_parallel(step, 8).take();
  for (int32_t parts = 1; parts <= 8; ++parts) {
    EXPECT_LE(best.step_s, expert_parallel_step_s(step, parts).value());
  }
  EXPECT_EQ(best.step_s, expert_parallel_step_s(step, best.parts).value());
  step.latency_s = 100;  // each part costs one
  EXPECT_EQ(best_expert_parallel(step, 8).value().parts, 1);
  EXPECT_EQ(best_disaggregated(step, 8).value().parts, 1);
}

// Two kinds that are one: no kind waits for the other, and each takes half of the steps.
TEST(HeterogeneousStepTest, IdealAddsThroughputs) {
  HeterogeneousStep step = some_step();
  step.slower = step.faster;
  step.exchange_bytes = step.latency_s = 0;
  const double alone = 4 * (14 + 28) / 2.0 + 2;
  EXPECT_NEAR(ideal_step_s(step, 4).value(), alone / 2, kRounding * alone);
  EXPECT_NEAR(expert_parallel_step_s(step, 1).value(), alone / 2, kRounding * alone);
}

TEST(HeterogeneousStepTest, EqualStagesPipelineAsTheyShould) {
  HeterogeneousStep step = some_step();
  step.faster = step.slower = {2, {3, 6}, {1, 2}, 0, 0};
  step.boundary_bytes = step.latency_s = 0;
  for (const int32_t microbatches : {1, 2, 5}) {
    const PipelineStep pipeline = pipeline_step(step, microbatches).take();
    EXPECT_EQ(pipeline.pipelines, 2);
    EXPECT_EQ(pipeline.stage_layers, (std::vector<int32_t>{2, 2}));
    // (R + P - 1) microbatches of a stage's forward and backward: 2 layers of 12 for half a batch.
    const double expected = (microbatches + 1) * 2 * 12 / 2.0 / microbatches;
    EXPECT_NEAR(pipeline.step_s, expected, kRounding * expected);
  }
}

TEST(HeterogeneousStepTest, SlowestStageIsAsFastAsCanBe) {
  constexpr uint32_t kSeed = 95;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  for (int k = 0; k < 200; ++k) {
    HeterogeneousStep step = some_step();
    step.faster.devices = step.slower.devices = 1;
    step.layers = 1 + static_cast<int32_t>(random() % 12);
    step.faster.attention.forward_s = 1 + static_cast<double>(random() % 50);
    step.slower.attention.forward_s = 1 + static_cast<double>(random() % 50);
    step.slower.head_s = 0;
    step.slower.most_layers = static_cast<int32_t>(random() % 5);
    const auto layer_s = [](const DeviceKind& kind) {
      return kind.attention.forward_s + kind.attention.backward_s + kind.experts.forward_s +
             kind.experts.backward_s;
    };
    const auto slowest = [&](int32_t faster) {
      return std::max(faster * layer_s(step.faster), (step.layers - faster) * layer_s(step.slower));
    };
    const PipelineStep pipeline = pipeline_step(step, 4).take();
    ASSERT_EQ(pipeline.stage_layers[0] + pipeline.stage_layers[1], step.layers);
    for (int32_t faster = 0; faster <= step.layers; ++faster) {
      const int32_t most = step.slower.most_layers;
      const bool fits = most == 0 || step.layers - faster <= most;
      if (!fits) continue;
      ASSERT_LE(slowest(pipeline.stage_layers[0]), slowest(faster));
    }
  }
}

TEST(HeterogeneousStepTest, PipelineThatDoesNotFit) {
  HeterogeneousStep step = some_step();
  step.faster.most_layers = step.slower.most_layers = 1;
  step.layers = 6;
  const auto pipeline = pipeline_step(step, 2);  // five stages
  ASSERT_FALSE(pipeline.ok());
  EXPECT_EQ(pipeline.status().code(), Exit::kDoesNotFit);
  EXPECT_NE(pipeline.status().message().find("5 layers of 6"), std::string::npos)
      << pipeline.status().message();
}

// What of the sums of gradients is not hidden behind the backward is the last layer's, if links are
// quick; the sums of all layers one after the other, if they are slow.
TEST(HeterogeneousStepTest, DataParallelSums) {
  const HeterogeneousStep none = some_step();
  const auto more = [&](double bytes, auto&& seconds_of) {
    HeterogeneousStep step = none;
    step.latency_s = 0;
    const double without = seconds_of(step);
    step.groups = 2;
    step.attention_gradient_bytes = bytes;
    return seconds_of(step) - without;
  };
  const auto disaggregated = [](const HeterogeneousStep& s) {
    return disaggregated_step_s(s, 1).value();
  };
  const auto spread = [](const HeterogeneousStep& s) {
    return expert_parallel_step_s(s, 1).value();
  };
  const auto zebra = [](const HeterogeneousStep& s) {
    return best_zebra(zebra_group(s, 2, 6).value()).value().times.makespan_s;
  };
  // 2 (k - 1) / k of the bytes over 100 bytes/s, for 4 faster devices, or all 10.
  EXPECT_NEAR(more(100, disaggregated), 1.5, 100 * kRounding);
  EXPECT_NEAR(more(100, spread), 1.8, 100 * kRounding);
  EXPECT_NEAR(more(100, zebra), 1.5, 100 * kRounding);
  HeterogeneousStep slow = none;
  slow.groups = 2;
  slow.attention_gradient_bytes = 1e6;
  EXPECT_GT(disaggregated(slow), 4 * 15000);
  // Two pipelines of five stages sum what a stage has.
  slow.expert_gradient_bytes = 1e6;
  EXPECT_GT(pipeline_step(slow, 2).value().step_s, 20000);
}

TEST(HeterogeneousStepTest, ZebraGroupOfTheSameNumbers) {
  const HeterogeneousStep step = some_step();
  const ZebraGroup group = zebra_group(step, 4, 6).take();
  EXPECT_EQ(group.times.attention.forward_s, 1);           // 8 / 2 / 4
  EXPECT_EQ(group.times.expert.backward_s, 1.5);           // 18 / 3 / 4
  EXPECT_EQ(group.times.offloaded_expert.forward_s, 0.5);  // 6 / 3 / 4
  EXPECT_EQ(group.times.dispatch.forward_s, 0.5 + 0.75);
  EXPECT_FALSE(zebra_group(step, 0, 6).ok());
  EXPECT_FALSE(zebra_group(step, 4, 7).ok());
}

TEST(HeterogeneousStepTest, RefusesNonsense) {
  const auto refused = [](const std::string& word, auto&& change) {
    HeterogeneousStep step = some_step();
    change(step);
    for (const auto& status :
         {zebra_group(step, 2, 6).status(), disaggregated_step_s(step, 2).status(),
          expert_parallel_step_s(step, 2).status(), ideal_step_s(step, 2).status(),
          pipeline_step(step, 2).status()}) {
      EXPECT_EQ(status.code(), Exit::kUsage) << word;
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
      EXPECT_EQ(status.message().find('\n'), std::string::npos);
    }
  };
  refused("0 layers", [](HeterogeneousStep& s) { s.layers = 0; });
  refused("0 faster devices", [](HeterogeneousStep& s) { s.faster.devices = 0; });
  refused("slower devices", [](HeterogeneousStep& s) { s.slower.experts.forward_s = 0; });
  refused("faster devices", [](HeterogeneousStep& s) { s.faster.attention.backward_s = NAN; });
  refused("hold -1", [](HeterogeneousStep& s) { s.faster.most_layers = -1; });
  refused("links of 0", [](HeterogeneousStep& s) { s.link_bytes_per_s = 0; });
  refused("latency", [](HeterogeneousStep& s) { s.latency_s = -1; });
  refused("bytes", [](HeterogeneousStep& s) { s.exchange_bytes = INFINITY; });
  refused("0 groups", [](HeterogeneousStep& s) { s.groups = 0; });
  refused("gradients", [](HeterogeneousStep& s) { s.expert_gradient_bytes = NAN; });
  EXPECT_FALSE(disaggregated_step_s(some_step(), 0).ok());
  EXPECT_FALSE(best_expert_parallel(some_step(), 0).ok());
  EXPECT_FALSE(pipeline_step(some_step(), 0).ok());
}

}  // namespace
}  // namespace pagoda
