// HeterMoE's sweeps (Figures 7, 9, 10 and 12) in simulation: zebra against its baselines as
// sequences grow and as the ratio of the two kinds of devices changes. The devices are like A40 and
// V100, not measured: rates of their experts that are 5 to 4 (Figure 2), attention whose part that
// grows with the sequence is nearly 4 times as slow on the slower ones, and the rest of it about as
// fast.
#pragma once

#include <cstdint>

#include "plan/zebra/heterogeneous_step.h"

namespace pagoda {

struct SweepModel {
  const char* name;
  int32_t layers, experts;
  double hidden, ffn;
};
inline constexpr SweepModel kMixtralD1 = {"Mixtral-D1", 8, 24, 1024, 3584};
inline constexpr SweepModel kMixtralW1 = {"Mixtral-W1", 4, 12, 2048, 7168};

// 196608 tokens in sequences of so many.
HeterogeneousStep sweep_step(const SweepModel& model, int32_t faster, int32_t slower,
                             double sequence_len);

// Throughputs against zebra with Asym-EA.
struct SweepPoint {
  double expert_parallel = 0, disaggregated = 0, ideal = 0, pipeline = 0;
  double plain = 0;  // zebra without Asym-EA
};
// `experts`: of a layer. Everything else is tuned: numbers of microbatches, parts of all-to-alls.
SweepPoint sweep_point(const HeterogeneousStep& step, int32_t experts);

}  // namespace pagoda
