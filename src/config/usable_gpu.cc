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

// Why there is no GPU to choose from; empty: there is one. Without kernels it is no matter what is
// missing besides.
std::string lack_of_all(const GpuReport& report) {
  if (gpu_ops_architectures().empty() && !report.toolkit.empty()) return kNoKernels;
  return report.missing;
}

std::string not_there(int number, size_t count) {
  const std::string last = count > 1 ? strf(" to cuda:%zu", count - 1) : "";
  return strf(
      "cuda:%d is not there: the driver shows %zu GPU%s, cuda:0%s (see nvidia-smi and "
      "CUDA_VISIBLE_DEVICES)",
      number, count, count == 1 ? "" : "s", last.c_str());
}

}  // namespace

UsableGpu usable_gpu() {
  const GpuReport report = find_gpus();
  UsableGpu usable;
  usable.is_there = !report.gpus.empty();
  usable.why_not = lack_of_all(report);
  if (usable.why_not.empty()) usable.why_not = lack_of(report.gpus.front());
  if (usable.why_not.empty()) usable.gpu = report.gpus.front();
  return usable;
}

Result<std::vector<Gpu>> usable_gpus(const std::vector<int>& numbers) {
  const GpuReport report = find_gpus();
  const std::string nothing = lack_of_all(report);
  if (!nothing.empty()) return Status(Exit::kUnavailable, nothing);
  std::vector<Gpu> gpus;
  for (const int number : numbers) {
    if (number >= std::ssize(report.gpus)) {
      return Status(Exit::kUnavailable, not_there(number, report.gpus.size()));
    }
    const Gpu& gpu = report.gpus[static_cast<size_t>(number)];
    const std::string lack = lack_of(gpu);
    if (!lack.empty()) return Status(Exit::kUnavailable, lack);
    gpus.push_back(gpu);
  }
  return gpus;
}

bool are_alike(const std::vector<Gpu>& gpus) {
  for (const Gpu& gpu : gpus) {
    const Gpu& first = gpus.front();
    if (gpu.name != first.name || gpu.major != first.major || gpu.minor != first.minor) {
      return false;
    }
  }
  return true;
}

}  // namespace pagoda
