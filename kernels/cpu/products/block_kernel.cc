#include "kernels/cpu/products/block_kernel.h"

namespace pagoda {
namespace {

// A dot product of pairs issues every other cycle on Intel's processors: multiply-adds of what was
// widened do twice its work there. On AMD's it issues as often as they do.
bool dot_is_slow() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace

const std::vector<const BlockKernel*>& block_kernels() {
  static const std::vector<const BlockKernel*> kernels = [] {
    const BlockKernel *dot = dot_block_kernel(), *wide = avx512_block_kernel();
    std::vector<const BlockKernel*> found;
    for (const BlockKernel* kernel :
         {amx_block_kernel(), dot_is_slow() ? wide : dot, dot_is_slow() ? dot : wide,
          avx2_block_kernel()}) {
      if (kernel != nullptr) found.push_back(kernel);
    }
    return found;
  }();
  return kernels;
}

}  // namespace pagoda
