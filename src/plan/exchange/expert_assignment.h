// Which device each of n experts gets, n devices of different rates, one expert each (Aurora
// section 5.1). Planned only: it is tested, and neither a run nor `pagoda plan` uses it yet.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace pagoda {

// [expert] its device: the expert with the largest load gets the device with the highest rate, and
// so on (Theorem 5.1). Equal ones: the lower index first. No assignment has a smaller largest
// load / rate; of communication and computation together that is not so (section 5.1 takes for
// granted that a device which is faster in one is not slower in the other, and still an expert's
// traffic depends on its partners'). Loads are tokens, bytes or seconds. O(n log(n)).
// kUsage without experts, for unequal counts, negative loads and rates that are not above 0.
Result<std::vector<int>> assign_by_load(std::span<const double> loads,
                                        std::span<const double> rates);

// A permutation of [0, count), drawn: of experts to devices (RGA) or to partners of another model
// (REC), the paper's baselines (section 8.1). The same seed draws the same. O(n).
std::vector<int> random_assignment(int count, uint64_t seed);

}  // namespace pagoda
