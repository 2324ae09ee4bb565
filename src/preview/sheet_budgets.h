// The memory that a run may take on the machine of a sheet, as memory.device and memory.host say.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "plan/machine/device_budget.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {

// Bytes of each of so many devices; those of a CPU share its memory. REQUIRES: devices > 0.
inline DeviceBudget device_budget(const RunConfig& config, const MachineSheet& sheet,
                                  int64_t devices) {
  const int64_t own = sheet.gpu() ? sheet.device_bytes() : sheet.device_bytes() / devices;
  return config.device_budget(std::vector(static_cast<size_t>(devices), own),
                              sheet.gpu() ? kAutoGpu : kAutoDevice);
}

// Bytes of host memory.
inline int64_t host_budget(const RunConfig& config, const MachineSheet& sheet) {
  return config.memory.host.resolve(sheet.host_bytes(), sheet.auto_host_bytes());
}

}  // namespace pagoda
