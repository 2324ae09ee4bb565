#include "kernels/cpu/score_blocks.h"

#include <limits>

#include "kernels/cpu/vector.h"

namespace pagoda {
namespace {

using HalfRow = uint16_t __attribute__((vector_size(32)));
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Where columns [16 half, 16 half + 16) of a row begin in a block of sums.
PAGODA_INLINE int64_t sums_of_row(int64_t row, int64_t half) {
  return row / kTileSide * 512 + half * 256 + row % kTileSide * kTileSide;
}

// Column numbers of half a row.
PAGODA_INLINE Vec columns_of(int64_t half) {
  const Vec first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return first + static_cast<float>(half * kTileSide);
}

// The upper halves are bf16, to nearest-even. NaN stays NaN: those of arithmetic on bf16 have zeros
// in their lower half.
PAGODA_INLINE UVec rounded(Vec v) {
  const UVec w = std::bit_cast<UVec>(v);
  return w + 0x7fffu + ((w >> 16) & 1u);
}

PAGODA_INLINE void put(std::byte* at, UVec v) { std::memcpy(at, &v, sizeof v); }

// Depths (2i, 2i + 1) of a right operand.
PAGODA_INLINE void put_pair(std::byte* at, UVec even, UVec odd) {
  put(at, (even >> 16) | (odd & 0xffff0000u));
}

PAGODA_INLINE Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// ---- forward: rows are keys ----

PAGODA_INLINE Vec highest_score(const float* scores, int64_t count, bool diagonal, int64_t half) {
  Vec best[2] = {splat(kLowest), splat(kLowest)};
  const int64_t whole = diagonal ? count - 1 : count;
  for (int64_t b = 0; b < whole; ++b) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kBlock; ++r) {
      best[r % 2] = larger(load(scores + b * kBlockFloats + sums_of_row(r, half)), best[r % 2]);
    }
  }
  if (diagonal) {
    const Vec query = columns_of(half);
    for (int64_t r = 0; r < kBlock; ++r) {
      const Vec v = load(scores + whole * kBlockFloats + sums_of_row(r, half));
      best[0] = larger(query < static_cast<float>(r) ? splat(kLowest) : v, best[0]);
    }
  }
  return larger(best[0], best[1]);
}

// Sixteen queries' weights of a block of keys; returns their sums.
template <bool kDiagonal>
PAGODA_INLINE Vec weigh(const float* scores, float scale, Vec highest, int64_t half,
                        std::byte* step) {
  const Vec query = columns_of(half);
  Vec sum{};
  for (int64_t i = 0; i < kTileSide; ++i) {
    Vec e[2];
#pragma GCC unroll 2
    for (int64_t odd = 0; odd < 2; ++odd) {
      const int64_t r = 2 * i + odd;
      e[odd] = exp2_lanes(load(scores + sums_of_row(r, half)) * scale - highest);
      if (kDiagonal) e[odd] = query < static_cast<float>(r) ? Vec{} : e[odd];
    }
    sum += e[0] + e[1];
    put_pair(step + half * kTileBytes + i * 64, rounded(e[0]), rounded(e[1]));
  }
  return sum;
}

// ---- backward: rows are queries ----

template <bool kDiagonal>
PAGODA_INLINE void gradient_pair(const ScoreGradient& g, int64_t i, int64_t half) {
  UVec weights[2], gradients[2];
#pragma GCC unroll 2
  for (int64_t odd = 0; odd < 2; ++odd) {
    const int64_t r = 2 * i + odd, at = sums_of_row(r, half);
    Vec p = exp2_lanes(load(g.scores + at) * g.scale - g.lse[r]);
    Vec ds = p * (load(g.dp + at) - g.delta[r]);
    if (kDiagonal) {
      const auto seen = columns_of(half) <= static_cast<float>(r);
      p = seen ? p : Vec{};
      ds = seen ? ds : Vec{};
    }
    weights[odd] = rounded(p);
    gradients[odd] = rounded(ds);
    const HalfRow row = __builtin_convertvector(gradients[odd] >> 16, HalfRow);
    std::memcpy(g.gradient_rows + r * 64 + half * 32, &row, sizeof row);
  }
  const int64_t at = half * kTileBytes + i * 64;
  put_pair(g.weights + at, weights[0], weights[1]);
  put_pair(g.gradients + at, gradients[0], gradients[1]);
}

}  // namespace

PAGODA_TARGET_CLONES bool softmax_columns(const float* scores, int64_t count, bool diagonal,
                                          float scale, SoftmaxColumns& state, float* shrink,
                                          std::byte* weights) {
  bool shrinks = false;
  const int64_t whole = diagonal ? count - 1 : count;
  for (int64_t half = 0; half < 2; ++half) {
    float* highest = state.highest + half * kTileSide;
    float* sum = state.sum + half * kTileSide;
    const Vec before = load(highest);
    const Vec now = larger(before, highest_score(scores, count, diagonal, half) * scale);
    Vec sums{};
    for (int64_t b = 0; b < whole; ++b) {
      sums += weigh<false>(scores + b * kBlockFloats, scale, now, half, weights + b * kStepBytes);
    }
    if (diagonal) {
      sums += weigh<true>(scores + whole * kBlockFloats, scale, now, half,
                          weights + whole * kStepBytes);
    }
    const Vec less = exp2_lanes(before - now);
    store(sum, load(sum) * less + sums);
    store(highest, now);
    store(shrink + half * kTileSide, less);
    for (int64_t i = 0; i < kTileSide; ++i) shrinks |= shrink[half * kTileSide + i] != 1.0f;
  }
  return shrinks;
}

PAGODA_TARGET_CLONES void scale_columns(float* sums, int64_t count, const float* by) {
  const Vec left = load(by), right = load(by + kTileSide);
  for (int64_t tile = 0; tile < 4 * count; ++tile) {
    const Vec factor = tile % 2 == 0 ? left : right;
    for (int64_t i = 0; i < 256; i += kLanes) {
      store(sums + tile * 256 + i, load(sums + tile * 256 + i) * factor);
    }
  }
}

PAGODA_TARGET_CLONES void find_score_gradient(const ScoreGradient& g) {
  for (int64_t i = 0; i < kTileSide; ++i) {
    for (int64_t half = 0; half < 2; ++half) {
      g.diagonal ? gradient_pair<true>(g, i, half) : gradient_pair<false>(g, i, half);
    }
  }
}

}  // namespace pagoda
