#include "config/usable_gpu.h"

#include "kernels/gpu_ops.h"

namespace pagoda {
namespace {

constexpr const char* kNoKernels =
    "this build has no CUDA kernels; build where the GPU is, or with -DPAGODA_CUDA=ON";

// Why the kernels do not compute on it; empty: they do.
std::string lack_of(const Gpu& gpu) {
  const std::string architectures = gpu_ops_architectures();
  if (architectures.empty()) return kNoKernels;
  if (!runs_on(architectures, gpu)) {
    return strf("%s: this build has kernels for %s; build with "
                "-DPAGODA_CUDA_ARCHITECTURES=%d%d", gpu.text().c_str(), architectures.c_str(),
                gpu.major, gpu.minor);
  }
  return "";
}

}  // namespace

UsableGpu usable_gpu() {
  const GpuReport report = find_gpus();
  UsableGpu usable;
  usable.is_there = !report.gpus.empty();
  usable.why_not = usable.is_there ? lack_of(report.gpus.front()) : report.missing;
  // Without kernels it is no matter what is missing besides.
  if (gpu_ops_architectures().empty() && !report.toolkit.empty()) {
    usable.why_not = kNoKernels;
  }
  if (usable.why_not.empty()) usable.gpu = report.gpus.front();
  return usable;
}

}  // namespace pagoda
