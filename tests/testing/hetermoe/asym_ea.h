// Asymmetric expert assignment (HeterMoE section 4.2): how many experts of each layer the expert
// devices of a zebra group leave to its attention devices. It has Algorithm 1, "gather and
// squeeze", with both memory bounds, and a search that starts from it. A run chooses by the same
// clock, but with its own devices (plan/zebra/zebra_search.h).
//
// A chunk is the least that can move: each attention device acquires n1 = max(1, N / M) experts,
// and each expert device gives n2 = n1 M / N. Of the numbers M of attention devices and N of expert
// devices one divides the other. Bubbles gather, T_gather = T_E_exp - T_A_attn a layer, until a
// chunk squeezes them, T_squeeze = (N / n) (T_E_exp n2 + T_E_attn n1). Where the paper's formulas
// and its text differ: a chunk is M n1 = N n2 experts, so the bounds are floor(n_max / n1) and
// ceil(n_min / (N n2)) chunks; o_l is never above n / N; if attention is no faster than experts and
// memory still requires moves, these are spread over the layers. Times and arithmetic are in whole
// numbers: with rounded ones the lower bound is missed.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tests/testing/hetermoe/zebra.h"

namespace pagoda {

// Bounds over all layers.
struct AsymBounds {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  int64_t most_per_attention_device = kNoLimit;  // n_max: experts that one can hold
  int64_t least = 0;  // n_min: experts that the expert devices together cannot hold
};

// Forward times of one microbatch in one layer, in whole numbers of any one unit; ZebraTimes
// explains each.
struct AsymTimes {
  int64_t attention = 0;
  int64_t expert = 0;
  int64_t offloaded_expert = 0;
};

// Algorithm 1: [layers] o_l, 0 for a last layer without experts. O(L). kUsage: counts that
// check_zebra refuses, times of 0 or less or more than 10^15, M and N of which neither divides the
// other. kDoesNotFit: bounds that leave no number. Ignores group.times and group.offloaded.
Result<std::vector<int32_t>> gather_and_squeeze(const ZebraGroup& group, const AsymTimes& times,
                                                const AsymBounds& bounds);

struct AsymPlan {
  std::vector<int32_t> gathered;   // [layers] o_l of Algorithm 1
  std::vector<int32_t> offloaded;  // [layers] o_l found
  Lags lags;
  double gathered_step_s = 0;  // with lags chosen for it
  double step_s = 0;
  int64_t plans_timed = 0;
};

// Goes from Algorithm 1 to the best neighbour within the bounds until none is better. A neighbour
// has a chunk more or less in a layer, or a chunk moved between layers at most four apart. Where
// that ends, lags are chosen anew, as long as it helps. A round times O(L) plans. Ignores
// group.offloaded. Returns the errors of gather_and_squeeze for the group's times in nanoseconds.
Result<AsymPlan> plan_asym_ea(const ZebraGroup& group, const AsymBounds& bounds);

}  // namespace pagoda
