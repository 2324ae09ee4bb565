#include "kernels/cpu/cpu_ops.h"

#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/products.h"

namespace pagoda {

std::string cpu_ops_build() { return products_build() + "; " + gemm_build(); }

Ops& cpu_ops() {
  static CpuOps ops;
  return ops;
}

}  // namespace pagoda
