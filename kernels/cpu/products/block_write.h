// BlockKernel::write for all kernels that run on processors with AVX-512. x86-64 only.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/products/block_kernel.h"

namespace pagoda {

__attribute__((target("avx512f"))) inline void write_sums(const float* sums, float* target,
                                                          int64_t stride) {
  for (int64_t r = 0; r < kBlock; ++r, target += stride) {
    const float* row = sums + r / kTileSide * 512 + r % kTileSide * kTileSide;
    _mm512_stream_ps(target, _mm512_add_ps(_mm512_load_ps(row), _mm512_setzero_ps()));
    _mm512_stream_ps(target + kTileSide,
                     _mm512_add_ps(_mm512_load_ps(row + 256), _mm512_setzero_ps()));
  }
}

}  // namespace pagoda
