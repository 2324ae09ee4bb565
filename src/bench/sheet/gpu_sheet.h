// The part of a machine's sheet that is of its GPU, measured through Device, Stream and Ops alone:
// products of cold experts, attention at lengths, copies within it and in both directions at once,
// updates, and what a kernel takes to start.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/gpus.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {

// Sets sheet.device and sheet.host.copy_gb_s; `rounds` of each measurement, over `bytes` of
// weights, states and copies each; `threads`: of the host, for what its streams do there. What
// cannot be measured so is peak_tflops: that of the GPU's class by datasheet
// (preview/this_machine.h), or what products reached if that is more. One GPU, as a run computes on
// one. kDeviceMemory, kHostMemory; stops between passes when a signal asks (stop_status). REQUIRES:
// a GPU that the kernels compute bf16 on (config/usable_gpu.h).
Status measure_gpu(const Gpu& gpu, int rounds, int threads, int64_t bytes, MachineSheet& sheet);

}  // namespace pagoda
