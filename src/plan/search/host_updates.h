// Updates of optimizer states in host memory, for devices that keep weights and gradients alone.
// They come after the last gradient, and nothing hides them. Pure.
#pragma once

#include "base/status.h"
#include "plan/machine/machine_sheet.h"
#include "plan/search/cluster_search.h"

namespace pagoda {

struct HostUpdates {
  double seconds = 0;      // download of gradients, updates on the host, upload of weights
  double state_bytes = 0;  // states on the host
};

// The updates of a node each of whose devices has `device_parameters`. Zeros for states on the
// device. kDoesNotFit: more than host memory.
Result<HostUpdates> host_updates(const MachineSheet& node, const StateChoice& state,
                                 double device_parameters);

}  // namespace pagoda
