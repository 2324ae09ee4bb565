#include "plan/search/state_updates.h"

#include "base/bytes.h"
#include "plan/machine/work_cost.h"

namespace pagoda {

Result<StateUpdates> state_updates(const MachineSheet& node, const StateChoice& state,
                                   const DeviceParameters& device) {
  const WorkSizes sizes;
  const WorkClock clock(node, 1);
  const double moved = update_bytes(sizes, state.state_bytes);
  StateUpdates updates;
  updates.seconds = clock.cost(gradient_work(sizes), 0, device.records).seconds(device.parameters);
  if (!state.on_host) {
    updates.seconds += clock.device_updates(moved, device.records).seconds(device.parameters);
    return updates;
  }
  const double of_node = device.parameters * static_cast<double>(node.device.count);
  updates.state_bytes = of_node * state.state_bytes;
  if (updates.state_bytes > static_cast<double>(node.auto_host_bytes())) {
    return Status(Exit::kDoesNotFit,
                  strf("states take %s of each host, which has %s",
                       format_bytes(static_cast<int64_t>(updates.state_bytes)).c_str(),
                       format_bytes(node.auto_host_bytes()).c_str()));
  }
  constexpr double kCopied = 2 * kValueBytes;  // of a parameter: its gradient down, its weight up
  updates.seconds += clock.host_updates(moved).seconds(of_node) +
                     clock.copy().seconds(kCopied * device.parameters);
  return updates;
}

}  // namespace pagoda
