// The shape of HeterMoE's Figures 7, 10 and 12, simulated: who is ahead of whom as sequences grow
// and as the ratio of the two kinds of devices changes. The devices are like A40 and V100, not
// measured: rates of their experts that are 4 to 5 (Figure 2), attention whose part that grows with
// the sequence is nearly 4 times as slow on the older ones, and the rest of it about as fast.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "plan/asym_ea.h"
#include "plan/unequal_step.h"

namespace pagoda {
namespace {

constexpr double kTokens = 196608;  // of a step
constexpr int32_t kMicrobatches[] = {2, 4, 8};
constexpr int32_t kMostParts = 8;

struct Model {
  const char* name;
  int32_t layers, experts;
  double hidden, ffn;
};
constexpr Model kDeep = {"Mixtral-D1", 8, 24, 1024, 3584};
constexpr Model kWide = {"Mixtral-W1", 4, 12, 2048, 7168};

struct Rates {
  double multiply, scores, experts;  // FLOP/s
  double memory;                     // bytes/s
};
constexpr Rates kA40Like = {60e12, 45e12, 50e12, 0.7e12};
constexpr Rates kV100Like = {48e12, 12e12, 40e12, 0.9e12};

// Backward with recomputation: three times the forward.
PassSeconds pass(double forward_s) { return {forward_s, 3 * forward_s}; }

DeviceKind kind_of(const Rates& rates, const Model& model, int32_t devices, double sequence) {
  const double d = model.hidden;
  DeviceKind kind;
  kind.devices = devices;
  // Projections, causal scores and 40 passes over the hidden state; two experts of three matrices.
  kind.attention = pass(kTokens * (8 * d * d / rates.multiply + 2 * sequence * d / rates.scores +
                                   40 * 2 * d / rates.memory));
  kind.experts = pass(kTokens * 12 * d * model.ffn / rates.experts);
  kind.head_s = kTokens * 3 * 2 * d * 32000 / rates.multiply;
  return kind;
}

UnequalStep step_of(const Model& model, int32_t newer, int32_t older, double sequence) {
  UnequalStep step;
  step.layers = model.layers;
  step.newer = kind_of(kA40Like, model, newer, sequence);
  step.older = kind_of(kV100Like, model, older, sequence);
  step.boundary_bytes = kTokens * 2 * model.hidden;
  step.exchange_bytes = 2 * step.boundary_bytes;
  step.link_bytes_per_s = 12.5e9;
  step.latency_s = 50e-6;
  return step;
}

struct Zebra {
  double plain_s = 0, step_s = 0;  // without and with Asym-EA
};

Zebra best_of(const UnequalStep& step, int32_t experts) {
  Zebra best;
  const auto keep = [](double& least, double seconds) {
    least = least == 0 ? seconds : std::min(least, seconds);
  };
  for (const int32_t microbatches : kMicrobatches) {
    const ZebraGroup group = zebra_group(step, microbatches, experts).take();
    const double plain_s = best_zebra(group).value().times.makespan_s;
    keep(best.plain_s, plain_s);
    const auto asym = plan_asym_ea(group, {});
    keep(best.step_s, asym.ok() ? asym.value().step_s : plain_s);
  }
  best.step_s = std::min(best.step_s, best.plain_s);
  return best;
}

// Throughputs against zebra with Asym-EA.
struct Ends {
  double ep_short = 0, ep_long = 0, disaggregated_short = 0, disaggregated_long = 0;
};

// Figures 7 and 12 on six devices of each kind.
Ends sweep_sequences(const Model& model) {
  std::printf("\n%s, 6 + 6 devices: throughput against zebra with Asym-EA\n"
              "  sequence     EP  DistEP  EP (Ideal)  pipeline  zebra alone\n",
              model.name);
  Ends ends;
  double gain_first = 0, gain_last = 0, ahead_of_ideal = 0;
  for (int k = 4; k <= 32; k += 4) {
    const UnequalStep step = step_of(model, 6, 6, k * 1024.0);
    const Zebra zebra = best_of(step, model.experts);
    const double ep = zebra.step_s / best_expert_parallel(step, kMostParts).value().step_s;
    const double disaggregated = zebra.step_s / best_disaggregated(step, kMostParts).value().step_s;
    const double ideal = zebra.step_s / ideal_step_s(step, kMostParts).value();
    const double pipeline = zebra.step_s / pipeline_step(step, 8).value().step_s;
    const double gain = zebra.plain_s / zebra.step_s;
    std::printf("  %7dK  %5.2f  %6.2f  %10.2f  %8.2f  %11.2f\n", k, ep, disaggregated, ideal,
                pipeline, 1 / gain);
    EXPECT_LT(ep, 1);
    EXPECT_LT(disaggregated, 1);
    EXPECT_LT(pipeline, 1);
    ahead_of_ideal = std::max(ahead_of_ideal, 1 / ideal);
    if (k == 4) {
      ends.ep_short = ep;
      ends.disaggregated_short = disaggregated;
      gain_first = gain;
    }
    ends.ep_long = ep;
    ends.disaggregated_long = disaggregated;
    gain_last = gain;
  }
  EXPECT_LT(ends.ep_long, ends.ep_short);  // falls behind as sequences grow
  EXPECT_GT(ahead_of_ideal, 1);
  EXPECT_GT(gain_first, 1);  // Figure 12: needed as long as experts take longer than attention
  EXPECT_EQ(gain_last, 1);
  return ends;
}

TEST(ZebraShapeTest, FiguresSevenAndTwelve) {
  const Ends deep = sweep_sequences(kDeep), wide = sweep_sequences(kWide);
  // On average over models DistEP is worse than EP with short sequences, and better with long ones.
  EXPECT_LT(deep.disaggregated_short + wide.disaggregated_short, deep.ep_short + wide.ep_short);
  EXPECT_GT(deep.disaggregated_long + wide.disaggregated_long, deep.ep_long + wide.ep_long);
}

struct Peak {
  int32_t older = 0;
  double ahead = 0;
  void add(int32_t devices, double value) {
    if (value <= ahead) return;
    ahead = value;
    older = devices;
  }
};

// Figure 10: four newer devices, experts in proportion to the older ones.
TEST(ZebraShapeTest, FigureTen) {
  std::printf("\n%s, 4 newer devices: throughput of zebra against EP (Ideal), in parentheses "
              "without Asym-EA\n  sequence ",
              kDeep.name);
  for (int32_t older = 2; older <= 8; ++older) std::printf("          4:%d", older);
  std::printf("\n");
  int32_t peak_before = 8;
  for (const int k : {4, 12, 20, 32}) {
    std::printf("  %7dK ", k);
    Peak peak, plain_peak;
    std::vector<double> ahead;
    for (int32_t older = 2; older <= 8; ++older) {
      const UnequalStep step = step_of(kDeep, 4, older, k * 1024.0);
      const double ideal_s = ideal_step_s(step, kMostParts).value();
      const Zebra zebra = best_of(step, 4 * older);
      ahead.push_back(ideal_s / zebra.step_s);
      std::printf("  %5.2f (%4.2f)", ahead.back(), ideal_s / zebra.plain_s);
      peak.add(older, ahead.back());
      plain_peak.add(older, ideal_s / zebra.plain_s);
    }
    std::printf("  best 4:%d (4:%d)\n", peak.older, plain_peak.older);
    // Longer sequences want fewer older devices.
    EXPECT_LE(plain_peak.older, peak_before);
    peak_before = plain_peak.older;
    if (k > 4) continue;
    // Three do not divide, so no expert can move: worse than two and than four.
    EXPECT_LT(ahead[1], ahead[0]);
    EXPECT_LT(ahead[1], ahead[2]);
  }
  EXPECT_LT(peak_before, 8);
}

}  // namespace
}  // namespace pagoda
