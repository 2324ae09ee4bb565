// Chooses the homes of the experts of two models that run on the same devices at once, by the
// tokens that recorded runs gave them (Aurora sections 6.2 and 7, where each device has one expert
// of each model). Pure.
//
// A layer of one model meets that of the other which is as many layers with experts from the first.
// In each of the two, experts form one group a device, of loads as the devices' speeds
// (plan/exchange/expert_assignment.h), which computing asks for, or of equal loads, which rows that
// travel may ask for: all four pairs are tried. Groups begin at the devices in their order, and
// also where decoupled_colocation() puts them; from both, swaps of whole groups go on while they
// shorten the layers' time together (plan/exchange/place_swaps.h), and the shortest end of all is
// taken. In a layer that meets none they begin in order, and swaps shorten its own time.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "plan/exchange/inference_time.h"
#include "plan/step/routing_trace.h"
#include "plan/step/run_shape.h"

namespace pagoda {

struct ColocatedModel {
  const RunShape& shape;
  const RoutingTrace& trace;
  double row_s = 0;                 // an expert's work on a row, on a device of speed 1
  double row_bytes = 0;             // of a row that goes to another device; as many come back
  std::span<const double> attends;  // [device] the share of the tokens that it attends to
};

struct ColocatedHomes {
  std::vector<int> of_a, of_b;  // [record] as homes_by_routing()
  // Seconds of experts and all-to-alls in the layers that meet, by colocated_times() and trace
  // steps: as they are, and by speed alone.
  double together_s = 0, by_speed_s = 0;
};

// O(layers x n^4) at least for n devices (plan/exchange/place_swaps.h). Errors of check_recorded()
// and device_phases(). REQUIRES: shapes on as many devices as there are.
Result<ColocatedHomes> colocated_homes(const ColocatedModel& a, const ColocatedModel& b,
                                       std::span<const ServingDevice> devices);

}  // namespace pagoda
