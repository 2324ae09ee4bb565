// The kernel of sixteen lanes on a processor that has vectors of eight: the same template as with
// AVX-512, each vector two of AVX2's, so that its arithmetic and order are tested where there is no
// AVX-512.
#pragma once

#include "kernels/cpu/products/block_kernel.h"

namespace pagoda {

// nullptr where the processor has no AVX2.
const BlockKernel* lowered_block_kernel();

}  // namespace pagoda
