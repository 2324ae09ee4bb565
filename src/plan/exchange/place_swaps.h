// Improves the places of experts by swaps that lower the inference time of the whole layer
// (plan/exchange/inference_time.h). Sorting by load (Aurora section 5.1) and matching by the work
// of one device (section 7.2) see neither the bandwidths at both ends of a transmission nor that
// devices wait for each other's phases. Their results are where swaps start.
//
// Parts of the tokens that have places of their own keep them. A move exchanges all experts of two
// devices, of one model or of both. The best move is made as long as it saves time. Before each
// move O(n^2) moves are tried for n devices, in O(n^2) each. The end is no worse than the start,
// and no such move makes it better.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "plan/exchange/inference_time.h"

namespace pagoda {

struct SwappedAssignment {
  std::vector<int> device_of_expert;
  double inference_s = 0;  // exclusive_time_s()
};

// Returns the errors of device_phases().
Result<SwappedAssignment> swapped_assignment(const PlacedLayer& start,
                                             std::span<const ServingDevice> devices);

struct SwappedColocation {
  std::vector<int> device_of_a, device_of_b;  // [expert]
  double inference_s = 0;                     // colocated_times() of colocated_phases()
};

// Returns the errors of colocated_phases().
Result<SwappedColocation> swapped_colocation(const PlacedLayer& a, const PlacedLayer& b,
                                             std::span<const ServingDevice> devices);

}  // namespace pagoda
