#include "kernels/cpu/products/block_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "base/bytes.h"
#include "kernels/cpu/products/block_write.h"

#define PAGODA_DOT __attribute__((target("avx512f,avx512bw,avx512bf16")))
#define PAGODA_DOT_INLINE PAGODA_DOT __attribute__((always_inline)) inline

namespace pagoda {
namespace {

void enter() {}
void leave() { _mm_sfence(); }

PAGODA_DOT_INLINE float* sums_of(const BlockProduct& p, int64_t row, int64_t column) {
  return p.sums + row / kTileSide * 512 + column / kTileSide * 256 + row % kTileSide * kTileSide;
}

PAGODA_DOT_INLINE __m512bh broadcast(const std::byte* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof both);
  __m512i wide = _mm512_set1_epi32(both);
#if defined(__clang__)
  asm("" : "+v"(wide));  // clang 16 crashes where it makes one instruction of this and the product
#endif
  return (__m512bh)wide;
}

// `kRows` rows from `row` on, which lie in one tile, by the first 16 kVectors columns: their sums
// stay in registers from the first step to the last.
template <int kRows, int kVectors>
PAGODA_DOT_INLINE void add_rows(const BlockProduct& p, int64_t row, const Ahead& ahead) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = p.add ? _mm512_load_ps(sums_of(p, row + r, v * kTileSide))
                         : _mm512_setzero_ps();
    }
  }
  const std::byte* left = p.left + row / kTileSide * p.tile_stride + row % kTileSide * p.row_stride;
  const std::byte* right = p.right;
  for (int64_t s = 0; s < p.steps; ++s) {
    ask_for(ahead, s);
    for (int64_t pair = 0; pair < kTileSide; ++pair) {
      __m512bh columns[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        columns[v] = (__m512bh)_mm512_load_si512(right + v * kTileBytes + pair * 64);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512bh factors = broadcast(left + r * p.row_stride + pair * 4);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = _mm512_dpbf16_ps(sums[r][v], factors, columns[v]);
        }
      }
    }
    left += p.step_stride;
    right += kStepBytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      _mm512_store_ps(sums_of(p, row + r, v * kTileSide), sums[r][v]);
    }
  }
}

constexpr int64_t kRowsAtOnce = 8;

// The lines that the rows from `row` on prefetch: for rows in memory the rows behind them, and
// their share of the caller's request.
Ahead ahead_of(const BlockProduct& p, int64_t row) {
  if (p.ahead.rows > 0) {
    const int64_t rows = align_up(p.rows, kRowsAtOnce);
    const int64_t first = p.ahead.rows * row / rows;
    const int64_t last = p.ahead.rows * (row + kRowsAtOnce) / rows;
    return {p.ahead.at + first * p.ahead.stride, last - first, p.ahead.stride,
            p.ahead.step_stride};
  }
  if (p.row_stride == 64) return {};  // packed
  const int64_t next = row + kRowsAtOnce;
  return {p.left + next / kTileSide * p.tile_stride + next % kTileSide * p.row_stride, kRowsAtOnce,
          p.row_stride, p.step_stride};
}

template <int kVectors>
PAGODA_DOT void add_block(const BlockProduct& p) {
  for (int64_t row = 0; row < p.rows; row += kRowsAtOnce) {
    add_rows<kRowsAtOnce, kVectors>(p, row, ahead_of(p, row));
  }
}

// Lines of more than eight rows that lie 4 KiB apart would drive each other out of the L1 cache.
void multiply(const BlockProduct& p) {
  p.cols > kTileSide ? add_block<2>(p) : add_block<1>(p);
}

PAGODA_DOT int64_t saturate(int64_t rounds) {
  constexpr int kChains = 16;
  __m512 sums[kChains];
#pragma GCC unroll 16
  for (auto& sum : sums) {
    sum = _mm512_setzero_ps();
    asm volatile("" : "+v"(sum));  // the compiler does not see that chains are equal
  }
  __m512 zeros = _mm512_setzero_ps();
  asm volatile("" : "+v"(zeros));
  const auto factor = (__m512bh)zeros;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, factor, factor);
  }
#pragma GCC unroll 16
  for (auto& sum : sums) asm volatile("" : : "v"(sum));
  return rounds * kChains * kTileSide * 4;
}

}  // namespace

const BlockKernel* dot_block_kernel() {
  static const BlockKernel kernel{"avx512_bf16", BlockSum::kOneChain, StepForm::kPairs,
                                  {8, 16, 64, true},
                                  enter, multiply, leave, write_sums, saturate};
  const bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512bf16");
  return can ? &kernel : nullptr;
}

}  // namespace pagoda
#else
namespace pagoda {
const BlockKernel* dot_block_kernel() { return nullptr; }
}  // namespace pagoda
#endif
