#include "tests/testing/hetermoe/heterogeneous_sweep.h"

#include <algorithm>
#include <numeric>

#include "tests/testing/hetermoe/asym_ea.h"

namespace pagoda {
namespace {

constexpr double kTokens = 196608;  // of a step
constexpr int32_t kMicrobatches[] = {2, 4, 8};
constexpr int32_t kPipelineMicrobatches = 8;
constexpr int32_t kMostParts = 8;

// Backward with recomputation: three times the forward.
PassSeconds pass(double forward_s) { return {forward_s, 3 * forward_s}; }

DeviceKind kind_of(const DeviceRates& rates, const SweepModel& model, int32_t devices,
                   double sequence) {
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
  double moved = 0;  // share of all experts that the faster devices keep
};

// Each slower device leaves o_l experts of a layer.
double moved_share(const HeterogeneousStep& step, const AsymPlan& plan, int32_t experts) {
  const int64_t left = std::accumulate(plan.offloaded.begin(), plan.offloaded.end(), int64_t{0});
  return static_cast<double>(left * step.slower.devices) /
         (static_cast<double>(experts) * step.layers);
}

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
    const double before_s = best.step_s;
    keep(best.step_s, asym.ok() ? asym.value().step_s : plain_s);
    if (best.step_s != before_s)
      best.moved = asym.ok() ? moved_share(step, asym.value(), experts) : 0;
    keep(best.algorithm_1_s, asym.ok() ? asym.value().gathered_step_s : plain_s);
  }
  if (best.plain_s < best.step_s) {
    best.step_s = best.plain_s;
    best.moved = 0;
  }
  return best;
}

// Seconds of one device's work in the step.
double attention_s(const HeterogeneousStep& step) {
  const DeviceKind& faster = step.faster;
  return (step.layers * faster.attention.both_s() + faster.head_s) / faster.devices;
}

double experts_s(const HeterogeneousStep& step, const DeviceKind& kind) {
  return step.layers * kind.experts.both_s() / kind.devices;
}

}  // namespace

HeterogeneousStep sweep_step(const SweepModel& model, int32_t faster, int32_t slower,
                             double sequence_len, const SweepDevices& devices) {
  HeterogeneousStep step;
  step.layers = model.layers;
  step.faster = kind_of(devices.faster, model, faster, sequence_len);
  step.slower = kind_of(devices.slower, model, slower, sequence_len);
  step.boundary_bytes = kTokens * 2 * model.hidden;
  step.exchange_bytes = 2 * step.boundary_bytes;
  step.link_bytes_per_s = devices.link_bytes_per_s;
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

SweepShares busy_shares(const HeterogeneousStep& step, int32_t experts) {
  const Zebra zebra = best_of(step, experts);
  const auto shares = [&](double step_s, double moved) {
    return BusyShares{(attention_s(step) + moved * experts_s(step, step.faster)) / step_s,
                      (1 - moved) * experts_s(step, step.slower) / step_s};
  };
  return {shares(best_disaggregated(step, kMostParts).value().step_s, 0), shares(zebra.plain_s, 0),
          shares(zebra.step_s, zebra.moved)};
}

double equal_devices(const HeterogeneousStep& step, const HeterogeneousStep& equal,
                     int32_t experts) {
  return best_of(step, experts).step_s / best_expert_parallel(equal, kMostParts).value().step_s;
}

AsymGain asym_gain(const HeterogeneousStep& step, int32_t experts) {
  const double attention_s = pagoda::attention_s(step);
  const double slower_s = experts_s(step, step.slower);
  // A share `moved` of all experts goes; a faster device has its part of that.
  const double moved = (slower_s - attention_s) / (slower_s + experts_s(step, step.faster));
  const double least_s = moved > 0 ? slower_s * (1 - moved) : attention_s;
  const Zebra zebra = best_of(step, experts);
  return {attention_s / slower_s, std::max(attention_s, slower_s) / least_s,
          zebra.plain_s / zebra.step_s, zebra.plain_s / zebra.algorithm_1_s};
}

}  // namespace pagoda
