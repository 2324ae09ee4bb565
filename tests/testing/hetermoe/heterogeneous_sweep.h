// HeterMoE's sweeps (Figures 7 to 12 and Table 3) in simulation: zebra against its baselines as
// sequences grow and as the ratio of the two kinds of devices changes.
#pragma once

#include <cstdint>

#include "tests/testing/hetermoe/heterogeneous_step.h"

namespace pagoda {

struct SweepModel {
  const char* name;
  int32_t layers, experts;
  double hidden, ffn;
};
inline constexpr SweepModel kMixtralD1 = {"Mixtral-D1", 8, 24, 1024, 3584};
inline constexpr SweepModel kMixtralD2 = {"Mixtral-D2", 6, 18, 1024, 3584};
inline constexpr SweepModel kMixtralD3 = {"Mixtral-D3", 8, 40, 1024, 3584};
inline constexpr SweepModel kMixtralW1 = {"Mixtral-W1", 4, 12, 2048, 7168};
inline constexpr SweepModel kMixtralW2 = {"Mixtral-W2", 4, 24, 2048, 7168};

// Rates of a device that are assumed, not measured.
struct DeviceRates {
  double multiply, scores, experts;  // FLOP/s
  double memory;                     // bytes/s
};
// Experts that are 5 to 4 (Figure 2), attention whose part that grows with the sequence is nearly 4
// times as slow on a V100, and the rest of it about as fast.
inline constexpr DeviceRates kA40Like = {60e12, 45e12, 50e12, 0.7e12};
inline constexpr DeviceRates kV100Like = {48e12, 12e12, 40e12, 0.9e12};
// 2.1 times the products and 2.8 times the memory of an A40 (section 6.4.2).
inline constexpr DeviceRates kA100Like = {126e12, 94.5e12, 105e12, 1.96e12};
// Those of configs/machines: products 7 times, scores 14 times as slow on a T4 (Figure 2b).
inline constexpr DeviceRates kL40sLike = {272e12, 181e12, 272e12, 0.78e12};
inline constexpr DeviceRates kT4Like = {38.8e12, 12.7e12, 38.8e12, 0.29e12};

struct SweepDevices {
  DeviceRates faster, slower;
  double link_bytes_per_s = 12.5e9;
};
inline constexpr SweepDevices kA40AndV100 = {kA40Like, kV100Like};
inline constexpr SweepDevices kL40sAndT4 = {kL40sLike, kT4Like, 25e9};

// 196608 tokens in sequences of so many.
HeterogeneousStep sweep_step(const SweepModel& model, int32_t faster, int32_t slower,
                             double sequence_len, const SweepDevices& devices = kA40AndV100);

// Throughputs against zebra with Asym-EA.
struct SweepPoint {
  double expert_parallel = 0, disaggregated = 0, ideal = 0, pipeline = 0;
  double plain = 0;  // zebra without Asym-EA
};
// `experts`: of a layer. Everything else is tuned: numbers of microbatches, parts of all-to-alls.
SweepPoint sweep_point(const HeterogeneousStep& step, int32_t experts);

// The share of the step in which a device of each kind computes, by the seconds of its work and
// those of the step (Table 3).
struct BusyShares {
  double faster = 0, slower = 0;
};
struct SweepShares {
  BusyShares disaggregated, plain, zebra;  // the last with Asym-EA
};
SweepShares busy_shares(const HeterogeneousStep& step, int32_t experts);

// Throughput of EP with so many equal devices against zebra with Asym-EA on `step` (Figure 11).
double equal_devices(const HeterogeneousStep& step, const HeterogeneousStep& equal,
                     int32_t experts);

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
