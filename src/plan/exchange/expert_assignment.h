// Assigns n experts to n devices of different rates, one expert each (Aurora section 5.1). Planned
// only: it is tested, and neither a run nor `pagoda plan` uses it yet.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace pagoda {

// [expert] its device: the expert with the largest load gets the device with the highest rate, and
// so on (Theorem 5.1). Among equals the lower index comes first. No assignment has a smaller
// largest load / rate. This does not hold for communication and computation together: section 5.1
// assumes that a device which is faster in one is not slower in the other, and even then an
// expert's traffic depends on its partners'. Loads are tokens, bytes or seconds. O(n log(n)).
// kUsage without experts, for unequal counts, negative loads and rates that are not above 0.
Result<std::vector<int>> assign_by_load(std::span<const double> loads,
                                        std::span<const double> rates);

// A random permutation of [0, count), of experts to devices (RGA) or to partners of another model
// (REC): the paper's baselines (section 8.1). The same seed gives the same permutation. O(n).
std::vector<int> random_assignment(int count, uint64_t seed);

}  // namespace pagoda
