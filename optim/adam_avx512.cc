// Standard headers come before the pragma: their inline functions are shared with files that must
// run everywhere.
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "optim/adam_kernel.h"

#if PAGODA_X86_LEVELS
#include <immintrin.h>
#pragma GCC target("arch=x86-64-v4")
#include "optim/adam_loop.h"

namespace pagoda {
const AdamKernel kAdamAvx512 = adam_kernel<16>("AVX-512");
}
#endif
