// Finds the NVIDIA GPUs of this machine and opens one as a Device. gpus_cuda.cc is linked if the
// CUDA toolkit was found when this was built, gpus_none.cc otherwise.
//
// The arena of a GPU's device is one plain allocation, made when the device is opened. A stream is
// a CUDA stream and a thread that follows it (device/stream_cuda.h). A CUDA error while work runs
// is no Status: the program ends with kIoError, naming call, stream and task; checkpoints are
// intact.
//
// Threading: find_gpus() and open_gpu() on the thread that owns the run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"

namespace pagoda {

struct Gpu {
  int index = 0;      // CUDA's number
  std::string name;   // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0;
  std::string pci_address;  // "0000:3b:00.0"

  std::string text() const;  // "GPU 0 (NVIDIA H200, sm_90, 139.8 GiB)"
};

struct GpuReport {
  std::string toolkit;  // CUDA version that this was built with, "13.0"; empty: without
  std::string driver;   // newest CUDA version that the driver knows; empty: no driver, or not asked
  std::vector<Gpu> gpus;
  std::string missing;  // why there are no GPUs, and what to do; empty: there are
};
GpuReport find_gpus();

// Whether code for `architectures` ("80,86,90a") runs on a GPU. Code for a plain number also runs,
// translated, on later architectures; code for one with a letter runs on that one alone.
bool runs_on(const std::string& architectures, const Gpu& gpu);

// kUnavailable: there is no such GPU, or its driver lacks what streams need. kDeviceMemory: the
// arena is larger than the GPU's memory, or than what other programs have left of it.
Result<std::unique_ptr<Device>> open_gpu(int index, const DeviceOptions& options);

}  // namespace pagoda
