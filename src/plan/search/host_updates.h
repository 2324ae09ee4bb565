// Updates of optimizer states that lie in host memory, where devices keep weights and gradients
// alone: after the last gradient, hidden by nothing. Pure.
#pragma once

#include "base/status.h"
#include "plan/machine/machine_sheet.h"
#include "plan/search/cluster_search.h"

namespace pagoda {

struct HostUpdates {
  double seconds = 0;      // gradients that come down, updates on the host, weights that go up
  double state_bytes = 0;  // of the host
};

// Of a node all of whose devices have so many parameters. Zeros for states on the device.
// kDoesNotFit: more than host memory.
Result<HostUpdates> host_updates(const MachineSheet& node, const StateChoice& state,
                                 double device_parameters);

}  // namespace pagoda
