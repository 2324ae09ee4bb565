#include "plan/search/host_updates.h"

#include "base/bytes.h"

namespace pagoda {

Result<HostUpdates> host_updates(const MachineSheet& node, const StateChoice& state,
                                 double device_parameters) {
  constexpr double kGiga = 1e9;
  constexpr double kMoved = 6;       // of a parameter: its gradient, its weight read and written
  constexpr double kCopied = 2 * 2;  // its gradient down, its weight up
  if (!state.on_host) return HostUpdates();
  const double of_node = device_parameters * static_cast<double>(node.device.count);
  const double state_bytes = of_node * state.state_bytes;
  if (state_bytes > static_cast<double>(node.auto_host_bytes())) {
    return Status(Exit::kDoesNotFit, strf("states take %s of each host, which has %s",
                                          format_bytes(static_cast<int64_t>(state_bytes)).c_str(),
                                          format_bytes(node.auto_host_bytes()).c_str()));
  }
  const double moved = of_node * (kMoved + 2 * state.state_bytes);
  const double seconds = moved / (node.host.adam_gb_s * kGiga) +
                         device_parameters * kCopied / (node.host.copy_gb_s * kGiga);
  return HostUpdates{seconds, state_bytes};
}

}  // namespace pagoda
