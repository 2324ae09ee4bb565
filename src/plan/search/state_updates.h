// The end of a step after its last gradient: gradients are rounded to the type in which they wait,
// and the optimizer's updates read and write states, on the devices or in host memory. Nothing
// hides them. Pure.
#pragma once

#include "base/status.h"
#include "plan/machine/machine_sheet.h"
#include "plan/search/cluster_search.h"

namespace pagoda {

// What one device has.
struct DeviceParameters {
  double parameters = 0;
  double records = 0;  // experts, dense parts of layers, tables; each is updated by itself
};
inline DeviceParameters operator+(const DeviceParameters& a, const DeviceParameters& b) {
  return {a.parameters + b.parameters, a.records + b.records};
}
inline DeviceParameters operator*(const DeviceParameters& of, double times) {
  return {of.parameters * times, of.records * times};
}

struct StateUpdates {
  double seconds = 0;
  double state_bytes = 0;  // states on the host; 0 if they are on the devices
};

// The updates of a node each of whose devices has this much. For states on the host gradients come
// down and weights go up. kDoesNotFit: more than host memory.
Result<StateUpdates> state_updates(const MachineSheet& node, const StateChoice& state,
                                   const DeviceParameters& device);

}  // namespace pagoda
