#include "tests/testing/plan/heterogeneous_sweep.h"

#include <algorithm>

#include "plan/zebra/asym_ea.h"

namespace pagoda {
namespace {

constexpr double kTokens = 196608;  // of a step
constexpr int32_t kMicrobatches[] = {2, 4, 8};
constexpr int32_t kPipelineMicrobatches = 8;
constexpr int32_t kMostParts = 8;

struct Rates {
  double multiply, scores, experts;  // FLOP/s
  double memory;                     // bytes/s
};
constexpr Rates kA40Like = {60e12, 45e12, 50e12, 0.7e12};
constexpr Rates kV100Like = {48e12, 12e12, 40e12, 0.9e12};

// Backward with recomputation: three times the forward.
PassSeconds pass(double forward_s) { return {forward_s, 3 * forward_s}; }

DeviceKind kind_of(const Rates& rates, const SweepModel& model, int32_t devices, double sequence) {
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

struct Zebra {
  double plain_s = 0, step_s = 0;  // without and with Asym-EA
  double algorithm_1_s = 0;
};

Zebra best_of(const HeterogeneousStep& step, int32_t experts) {
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
    keep(best.algorithm_1_s, asym.ok() ? asym.value().gathered_step_s : plain_s);
  }
  best.step_s = std::min(best.step_s, best.plain_s);
  return best;
}

}  // namespace

HeterogeneousStep sweep_step(const SweepModel& model, int32_t faster, int32_t slower,
                             double sequence_len) {
  HeterogeneousStep step;
  step.layers = model.layers;
  step.faster = kind_of(kA40Like, model, faster, sequence_len);
  step.slower = kind_of(kV100Like, model, slower, sequence_len);
  step.boundary_bytes = kTokens * 2 * model.hidden;
  step.exchange_bytes = 2 * step.boundary_bytes;
  step.link_bytes_per_s = 12.5e9;
  step.latency_s = 50e-6;
  return step;
}

SweepPoint sweep_point(const HeterogeneousStep& step, int32_t experts) {
  const Zebra zebra = best_of(step, experts);
  return {zebra.step_s / best_expert_parallel(step, kMostParts).value().step_s,
          zebra.step_s / best_disaggregated(step, kMostParts).value().step_s,
          zebra.step_s / ideal_step_s(step, kMostParts).value(),
          zebra.step_s / pipeline_step(step, kPipelineMicrobatches).value().step_s,
          zebra.step_s / zebra.plain_s};
}

AsymGain asym_gain(const HeterogeneousStep& step, int32_t experts) {
  const auto experts_s = [&](const DeviceKind& kind) {
    return step.layers * kind.experts.both_s() / kind.devices;
  };
  const DeviceKind& faster = step.faster;
  const double attention_s =
      (step.layers * faster.attention.both_s() + faster.head_s) / faster.devices;
  const double slower_s = experts_s(step.slower);
  // A share `moved` of all experts goes; a faster device has its part of that.
  const double moved = (slower_s - attention_s) / (slower_s + experts_s(faster));
  const double least_s = moved > 0 ? slower_s * (1 - moved) : attention_s;
  const Zebra zebra = best_of(step, experts);
  return {attention_s / slower_s, std::max(attention_s, slower_s) / least_s,
          zebra.plain_s / zebra.step_s, zebra.plain_s / zebra.algorithm_1_s};
}

}  // namespace pagoda
