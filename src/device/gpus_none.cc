#include "device/gpus.h"

namespace pagoda {

GpuReport find_gpus() {
  GpuReport report;
  report.missing = "this pagoda was built without CUDA; build it where the CUDA toolkit (12 or "
                   "later) is installed";
  return report;
}

Result<std::unique_ptr<Device>> open_gpu(int, const DeviceOptions&) {
  return Status(Exit::kUnavailable, find_gpus().missing);
}

}  // namespace pagoda
