#include "kernels/kernel_set.h"

#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/products.h"
#include "kernels/ops.h"

namespace pagoda {

std::string cpu_ops_build() { return products_build() + "; " + gemm_build(); }

std::string cpu_kernel_set() { return products_kernel() + "/" + gemm_name(); }

}  // namespace pagoda
