// Which device computes which expert of a layer this time, where experts are brought up on demand
// (ES-MoE, section 4.2): the longest first, each to the device with the least so far. Planned only:
// it is tested, and neither a run nor `pagoda plan` uses it yet. Pure.
//
// An expert takes max(upload, compute), as if its upload ran beside the work on the one before. By
// the sum of these the busiest device has at most 4/3 - 1/(3 devices) of the least possible (Graham
// 1969), and 5, 5, 4, 4, 3, 3, 3 on three devices take as much. What a device really takes is its
// pipeline, of which the first upload hides behind nothing: pipelined_s. The bound is not for that.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace pagoda {

struct ExpertTime {
  double upload_s = 0;
  double compute_s = 0;
};

// Of each expert by its tokens: the same upload for all, compute by token; nothing for an expert
// without tokens, which is not brought up. kUsage: no expert, negative tokens, times that are
// negative or no numbers. (num_experts)
Result<std::vector<ExpertTime>> expert_times(std::span<const int64_t> tokens_per_expert,
                                             double upload_s, double token_compute_s);

struct ExpertPlacement {
  std::vector<int32_t> device_of_expert;
  std::vector<double> device_s;  // sum of max(upload, compute) of its experts
};

// Equal times: the lower expert first; equal loads: the lower device. kUsage: no expert or device,
// times that are negative or no numbers. O(E log E + E log devices).
Result<ExpertPlacement> place_longest_first(std::span<const ExpertTime> experts, int32_t devices);

// Longest first, then while that helps the best exchange of the busiest device with any other, of
// an expert for another or for none, at most E times: closer to balance where experts are few (four
// a device), when there is time for it. No worse than place_longest_first, whose errors it has.
// O(E^3), as a rule O(E^2).
Result<ExpertPlacement> place_balanced(std::span<const ExpertTime> experts, int32_t devices);

// What a device takes for these experts, in this order: uploads one after the other from 0 on, each
// expert computed when it is there and the one before is done. Room for all is taken for granted.
double pipelined_s(std::span<const ExpertTime> experts);

}  // namespace pagoda
