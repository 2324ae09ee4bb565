#include "config/computed_with.h"

#include "base/check.h"
#include "kernels/gpu_ops.h"
#include "kernels/kernel_set.h"

namespace pagoda {
namespace {

std::string of_gpu(const std::optional<Gpu>& gpu) {
  return gpu ? gpu_ops_build() + " on " + gpu->name + ", " : "";
}

}  // namespace

std::string kernel_set_with(const std::optional<Gpu>& gpu) {
  return of_gpu(gpu) + cpu_kernel_set();
}

std::string build_with(const std::optional<Gpu>& gpu) {
  return strf("pagoda %s, %s", PAGODA_VERSION, (of_gpu(gpu) + cpu_ops_build()).c_str());
}

}  // namespace pagoda
