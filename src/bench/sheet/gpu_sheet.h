// The part of a machine's sheet that is of its GPU, measured through Device, Stream and Ops alone:
// products of cold experts, attention at lengths, copies within it and in both directions at once,
// updates, and the time to start a kernel.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/gpus.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {

// Sets sheet.device and sheet.host.copy_gb_s; `rounds` of each measurement, over `bytes` of
// weights, states and copies each; `threads`: the host's, for the work of streams there.
// peak_tflops cannot be measured like this: it is that of the GPU's class by datasheet
// (preview/this_machine.h), or the rate of products if that is more. Measures one GPU, since a run
// computes on one. kDeviceMemory, kHostMemory; stops between passes when a signal asks
// (stop_status). REQUIRES: a GPU that the kernels compute bf16 on (config/usable_gpu.h).
Status measure_gpu(const Gpu& gpu, int rounds, int threads, int64_t bytes, MachineSheet& sheet);

}  // namespace pagoda
