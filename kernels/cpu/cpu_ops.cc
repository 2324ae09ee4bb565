#include "kernels/cpu/cpu_ops.h"

#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/products.h"
#include "kernels/kernel_set.h"

namespace pagoda {

std::string cpu_ops_build() { return products_build() + "; " + gemm_build(); }

std::string cpu_kernel_set() { return products_kernel() + "/" + gemm_name(); }

Ops& cpu_ops() {
  static CpuOps ops;
  return ops;
}

}  // namespace pagoda
