// Chooses the device that computes each expert of a layer, where experts are uploaded on demand
// (ES-MoE, section 4.2): the longest first, each to the device with the least load so far. Planned
// only: it is tested, and neither a run nor `pagoda plan` uses it yet. Pure.
//
// An expert takes max(upload, compute), as if its upload ran beside the work on the one before. In
// the sum of these times the busiest device has at most 4/3 - 1/(3 devices) of the least possible
// (Graham 1969); 5, 5, 4, 4, 3, 3, 3 on three devices reach that bound. A device's real time is
// that of its pipeline, in which the first upload hides behind nothing: pipelined_s. The bound does
// not hold for it.
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

// The times of each expert by its tokens: the same upload for all, compute time by token, and
// nothing for an expert without tokens, which is not uploaded. kUsage: no expert, negative tokens,
// times that are negative or no numbers. (num_experts)
Result<std::vector<ExpertTime>> expert_times(std::span<const int64_t> tokens_per_expert,
                                             double upload_s, double token_compute_s);

struct ExpertPlacement {
  std::vector<int32_t> device_of_expert;
  std::vector<double> device_s;  // sum of max(upload, compute) of its experts
};

// Among equal times the lower expert comes first, among equal loads the lower device. kUsage: no
// expert or device, times that are negative or no numbers. O(E log E + E log devices).
Result<ExpertPlacement> place_longest_first(std::span<const ExpertTime> experts, int32_t devices);

// Places longest first, then repeats, while that helps and at most E times, the best exchange of
// the busiest device with any other: an expert for another one or for none. That is closer to
// balance where experts are few (four a device). The result is no worse than place_longest_first's;
// the errors are the same. O(E^3), as a rule O(E^2).
Result<ExpertPlacement> place_balanced(std::span<const ExpertTime> experts, int32_t devices);

// The time of a device for these experts in this order: uploads run one after the other from 0 on,
// and an expert is computed when it has arrived and the one before is done. Assumes room for all.
double pipelined_s(std::span<const ExpertTime> experts);

}  // namespace pagoda
