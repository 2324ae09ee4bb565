// Places of experts made better by swaps, by the inference time of the whole layer
// (plan/exchange/inference_time.h). Sorting by load (Aurora section 5.1) and matching by what
// happens on one device (section 7.2) do not see which bandwidths the ends of a transmission have,
// nor that devices wait for each other's phases; they are where to start. Planned only: it is
// tested, and neither a run nor `pagoda plan` uses it yet.
//
// A move changes all experts of two devices for each other: those of one model, or of both. The
// best move of all is made as long as it saves time. O(n^2) moves are tried before each, O(n^2)
// each, for n devices; the end is no worse than the start, and no such move makes it better.
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

// kUsage as device_phases().
Result<SwappedAssignment> swapped_assignment(const PlacedLayer& start,
                                             std::span<const ServingDevice> devices);

struct SwappedColocation {
  std::vector<int> device_of_a, device_of_b;  // [expert]
  double inference_s = 0;                     // colocated_times() of colocated_phases()
};

// kUsage as colocated_phases().
Result<SwappedColocation> swapped_colocation(const PlacedLayer& a, const PlacedLayer& b,
                                             std::span<const ServingDevice> devices);

}  // namespace pagoda
