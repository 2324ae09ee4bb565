#include "optim/adam_kernel.h"

#include <vector>

#include "optim/adam_loop.h"

namespace pagoda {
namespace {

constexpr AdamKernel kEverywhere = adam_kernel<4>("baseline");

std::vector<AdamKernel> usable_kernels() {
  std::vector<AdamKernel> kernels;
#if PAGODA_X86_LEVELS
  if (__builtin_cpu_supports("x86-64-v4")) kernels.push_back(kAdamAvx512);
  if (__builtin_cpu_supports("x86-64-v3")) kernels.push_back(kAdamAvx2);
#endif
  kernels.push_back(kEverywhere);
  return kernels;
}

}  // namespace

std::span<const AdamKernel> adam_kernels() {
  static const std::vector<AdamKernel> kernels = usable_kernels();
  return kernels;
}

}  // namespace pagoda
