#include "train/saved_layers.h"

#include <algorithm>

#include "train/process_memory.h"

namespace pagoda {
namespace {

bool fits(const ModelConfig& config, const SessionOptions& options, const MemoryPlan& memory) {
  const ModelShape model = model_shape(config);
  const DeviceRange own = options.own_devices();
  for (int d = 0; d < own.count; ++d) {
    const int64_t slots = memory.device_slot_bytes[static_cast<size_t>(d)];
    const int64_t workspace = workspace_bytes(model, options.size, own.first + d);
    if (workspace + slots > options.device_bytes.of(d)) return false;
  }
  return check_machine_memory(config, options, memory).ok();
}

}  // namespace

int64_t saved_layers(const ModelConfig& config, const SessionOptions& options,
                     const MemoryPlan& memory) {
  if (!options.keep || !options.size.training || !options.plan.same_blocks()) return 0;
  if (options.stages > 1) return 0;  // the last layers are not on every device
  SessionOptions keeping = options;
  int64_t fit = 0, too_many = config.num_layers + 1;
  while (too_many - fit > 1) {
    keeping.size.saved_layers = fit + (too_many - fit) / 2;
    (fits(config, keeping, memory) ? fit : too_many) = keeping.size.saved_layers;
  }
  return fit;
}

SessionOptions keeping_none(const SessionOptions& options) {
  SessionOptions none = options;
  none.size.saved_layers = 0;
  return none;
}

int64_t most_kept_bytes(const ModelConfig& config, const SessionOptions& options) {
  const ModelShape model = model_shape(config);
  const WorkspaceSize none = keeping_none(options).size;
  WorkspaceSize all = options.size;
  all.saved_layers = config.num_layers;
  int64_t most = 0;
  const DeviceRange own = options.own_devices();
  for (int d = own.first; d < own.end(); ++d) {
    most = std::max(most, workspace_bytes(model, all, d) - workspace_bytes(model, none, d));
  }
  return most;
}

}  // namespace pagoda
