// Assigns experts to devices of different rates, by the tokens that they get (Aurora section 5.1).
// Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/step/routing_trace.h"
#include "plan/step/run_shape.h"

namespace pagoda {

// One expert each: [expert] its device. The expert with the largest load gets the device with the
// highest rate, and so on (Theorem 5.1). Among equals the lower index comes first. No assignment
// has a smaller largest load / rate. This does not hold for communication and computation together:
// section 5.1 assumes that a device which is faster in one is not slower in the other, and even
// then an expert's traffic depends on its partners'. Loads are tokens, bytes or seconds. O(n
// log(n)). kUsage without experts, for unequal counts, negative loads and rates that are not above
// 0.
Result<std::vector<int>> assign_by_load(std::span<const double> loads,
                                        std::span<const double> rates);

// Any number of experts each: [expert] its device. In the order of their loads, the largest first,
// each goes to the device that ends first with one more; of devices that end together, to the one
// that has fewer experts for its rate, and then to the lower index. The largest load / rate is at
// most 2 - 2 / (n + 1) times the least that n devices can have (Gonzalez, Ibarra and Sahni, Bounds
// for LPT schedules on uniform processors, 1977). kUsage as above, but for unequal counts.
// O(experts * devices).
Result<std::vector<int>> deal_by_load(std::span<const double> loads, std::span<const double> rates);

// [record] the device of each expert by the tokens that its layer's experts got in the trace, and
// -1 of dense records. An expert counts as one token more, so that those which got none are shared
// out too. kUsage when the trace is of another model, when there is one device, and as above;
// kBadData when it has no whole step.
Result<std::vector<int>> homes_by_routing(const RunShape& shape, const RoutingTrace& trace,
                                          std::span<const double> rates);

// Returns by how much the slowest device of a layer takes longer than if the trace's tokens were
// shared out by the rates exactly, over all layers; 1: not at all. Experts are at home as `shape`
// has it. REQUIRES: homes_by_routing() takes the same.
double imbalance(const RunShape& shape, const RoutingTrace& trace, std::span<const double> rates);

// A random permutation of [0, count), of experts to devices (RGA) or to partners of another model
// (REC): the paper's baselines (section 8.1). The same seed gives the same permutation. O(n).
std::vector<int> random_assignment(int count, uint64_t seed);

}  // namespace pagoda
