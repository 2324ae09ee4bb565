// Assigns experts to devices of different rates, by the tokens that they get (Aurora section 5.1).
// Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/step/routing_trace.h"
#include "plan/step/run_shape.h"

namespace pagoda {

// Any number of experts each: [expert] its device. In the order of their loads, the largest first,
// each goes to the device that ends first with one more; of devices that end together, to the one
// that has fewer experts for its rate, and then to the lower index. The largest load / rate is at
// most 2 - 2 / (n + 1) times the least that n devices can have (Gonzalez, Ibarra and Sahni, Bounds
// for LPT schedules on uniform processors, 1977). kUsage for negative loads and rates that are not
// above 0. O(experts * devices).
Result<std::vector<int>> deal_by_load(std::span<const double> loads, std::span<const double> rates);

// [device] what all ranks tell of theirs, a text of each with a rate and a blank for each device.
// kIoError unless there are so many rates above 0.
Result<std::vector<double>> rates_of_ranks(std::span<const std::string> texts, size_t devices);

// [expert] the tokens that the layer's experts got in all steps of the trace.
std::vector<double> recorded_tokens(const RoutingTrace& trace, int64_t layer);

// Whether homes can follow from the trace: kUsage when it is of another model and when there is one
// device; kBadData when it has no whole step. `option`: what named it, for the message.
Status check_recorded(const RunShape& shape, const RoutingTrace& trace,
                      const char* option = "--routing");

// [record] the device of each expert by the tokens that its layer's experts got in the trace, and
// -1 of dense records. An expert counts as one token more, so that those which got none are shared
// out too. Errors of check_recorded(), and kUsage as above.
Result<std::vector<int>> homes_by_routing(const RunShape& shape, const RoutingTrace& trace,
                                          std::span<const double> rates);

// Returns by how much the slowest device of a layer takes longer than if the trace's tokens were
// shared out by the rates exactly, over all layers; 1: not at all. Experts are at home as `shape`
// has it. REQUIRES: homes_by_routing() takes the same.
double imbalance(const RunShape& shape, const RoutingTrace& trace, std::span<const double> rates);

}  // namespace pagoda
