// `pagoda bench machine`: this machine's sheet (plan/machine/machine_sheet.h), measured in about a
// minute: products of cold experts at few and many rows, attention at lengths, streams of memory,
// copies, checksums, updates, the drive. With a GPU the first four are its own
// (bench/sheet/gpu_sheet.h). The network is measured by several processes together
// (bench/sheet/network.h).
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "device/gpus.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {

struct MachineBench {
  std::string directory = ".";  // on the drive to be measured; a scratch folder in it is removed
  int rounds = 0;
  int threads = 0;
  int64_t bytes = 0;  // bytes of weights, of arrays and of the drive's file, each
  std::optional<Gpu> gpu;  // the GPU that computes; none: the cores do
};

// kHostMemory or kDeviceMemory when there is too little memory to measure with; stops between
// passes when a signal asks (stop_status).
Result<MachineSheet> measure_machine(const MachineBench& bench);

}  // namespace pagoda
