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

// What Asym-EA gains: time without it over time with it. The bound is arithmetic: of the seconds A
// of attention and head on a faster device, E of experts on a slower one, and E' of the same on a
// faster one, the part x of all experts moves that makes both kinds end together, E (1 - x) = A + x
// E', and both are busy all the time, before (the longer of A and E) and after.
struct AsymGain {
  double attention = 0;  // A / E
  double bound = 1;
  double planned = 1, algorithm_1 = 1;  // by the clock: as planned, and with Algorithm 1's o_l
};
AsymGain asym_gain(const HeterogeneousStep& step, int32_t experts);

}  // namespace pagoda
