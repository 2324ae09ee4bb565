// fp32 masters as bf16 weights and what those lack, in bulk.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace pagoda {

void round_masters(const float* masters, int64_t n, bf16* weights);
void split_masters(const float* masters, int64_t n, bf16* weights, int16_t* remainders);
// Exactly what was split, of finite masters.
void join_masters(const bf16* weights, const int16_t* remainders, int64_t n, float* masters);

}  // namespace pagoda
