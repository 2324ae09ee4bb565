// The name of the kernels that the CPU computes with: in "avx2/oneDNN-2.6.3-0x7" the first is the
// kernel of products by blocks (kernels/cpu/products/products.h), the second the library of the
// others. Vendor and features of the processor and the library decide it, never a timing. Results
// of two sets may differ in their last bits, those of one never do.
#pragma once

#include <string>

namespace pagoda {

std::string cpu_kernel_set();

}  // namespace pagoda
