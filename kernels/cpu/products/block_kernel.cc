#include "kernels/cpu/products/block_kernel.h"

namespace pagoda {

const std::vector<const BlockKernel*>& block_kernels() {
  static const std::vector<const BlockKernel*> kernels = [] {
    std::vector<const BlockKernel*> found;
    for (const BlockKernel* kernel :
         {amx_block_kernel(), dot_block_kernel(), avx512_block_kernel(), avx2_block_kernel()}) {
      if (kernel != nullptr) found.push_back(kernel);
    }
    return found;
  }();
  return kernels;
}

}  // namespace pagoda
