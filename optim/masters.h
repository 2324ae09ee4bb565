// Converts many fp32 masters to bf16 weights and the remainders that those lack.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace pagoda {

void round_masters(const float* masters, int64_t n, bf16* weights);
void split_masters(const float* masters, int64_t n, bf16* weights, int16_t* remainders);
// Gives back exactly the masters that were split, if they are finite.
void join_masters(const bf16* weights, const int16_t* remainders, int64_t n, float* masters);

}  // namespace pagoda
