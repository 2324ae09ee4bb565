#include "kernels/cpu/attention/score_blocks.h"

#include <limits>

#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Tile `t` of a block of sums: rows [16 (t / 2), ...) by columns [16 (t % 2), ...).
PAGODA_INLINE const float* tile_of(const float* block, int64_t t) { return block + t * 256; }

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
  Vec even = splat(kLowest), odd = even;
  const int64_t whole = diagonal ? count - 1 : count;
  for (int64_t t = half; t < 4 * whole; t += 2) {
    const float* tile = tile_of(scores, t);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kTileSide; r += 2) {
      even = larger(load(tile + r * kTileSide), even);
      odd = larger(load(tile + (r + 1) * kTileSide), odd);
    }
  }
  if (!diagonal) return larger(even, odd);
  const Vec query = columns_of(half);
  for (int64_t top = 0; top < 2; ++top) {
    const float* tile = tile_of(scores, 4 * whole + 2 * top + half);
    for (int64_t r = 0; r < kTileSide; ++r) {
      const auto key = static_cast<float>(top * kTileSide + r);
      even = larger(query < key ? splat(kLowest) : load(tile + r * kTileSide), even);
    }
  }
  return larger(even, odd);
}

// Sixteen queries' weights of a block of keys; returns their sums.
template <bool kDiagonal>
PAGODA_INLINE Vec weigh(const float* scores, float scale, Vec highest, int64_t half,
                        std::byte* step) {
  const Vec query = columns_of(half);
  Vec sum{};
  for (int64_t top = 0; top < 2; ++top) {
    const float* tile = tile_of(scores, 2 * top + half);
    std::byte* pairs = step + half * kTileBytes + top * kTileBytes / 2;
    for (int64_t r = 0; r < kTileSide; r += 2) {
      Vec even = exp2_lanes(load(tile + r * kTileSide) * scale - highest);
      Vec odd = exp2_lanes(load(tile + (r + 1) * kTileSide) * scale - highest);
      if (kDiagonal) {
        const auto key = static_cast<float>(top * kTileSide + r);
        even = query < key ? Vec{} : even;
        odd = query < key + 1.0f ? Vec{} : odd;
      }
      sum += even + odd;
      put_pair(pairs + r * 32, rounded(even), rounded(odd));
    }
  }
  return sum;
}

// ---- backward: rows are queries ----

// Row `r` of a block, sixteen keys of it.
template <bool kDiagonal>
PAGODA_INLINE void find_row(const ScoreGradient& g, int64_t r, int64_t half, int64_t at,
                            UVec& weights, UVec& gradients) {
  Vec p = exp2_lanes(load(g.scores + at) * g.scale - g.lse[r]);
  Vec ds = p * (load(g.dp + at) - g.delta[r]);
  if (kDiagonal) {
    const auto seen = columns_of(half) <= static_cast<float>(r);
    p = seen ? p : Vec{};
    ds = seen ? ds : Vec{};
  }
  weights = rounded(p);
  gradients = rounded(ds);
  const HalfRow row = __builtin_convertvector(gradients >> 16, HalfRow);
  std::memcpy(g.gradient_rows + r * 64 + half * 32, &row, sizeof row);
}

template <bool kDiagonal>
PAGODA_INLINE void find_tile(const ScoreGradient& g, int64_t top, int64_t half) {
  const int64_t pairs = half * kTileBytes + top * kTileBytes / 2;
  for (int64_t r = 0; r < kTileSide; r += 2) {
    const int64_t at = (2 * top + half) * 256 + r * kTileSide, row = top * kTileSide + r;
    UVec weights[2], gradients[2];
    find_row<kDiagonal>(g, row, half, at, weights[0], gradients[0]);
    find_row<kDiagonal>(g, row + 1, half, at + kTileSide, weights[1], gradients[1]);
    put_pair(g.weights + pairs + r * 32, weights[0], weights[1]);
    put_pair(g.gradients + pairs + r * 32, gradients[0], gradients[1]);
  }
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

PAGODA_TARGET_CLONES void find_score_gradient(const ScoreGradient& gradient) {
  const ScoreGradient g = gradient;
  for (int64_t top = 0; top < 2; ++top) {
    for (int64_t half = 0; half < 2; ++half) {
      g.diagonal ? find_tile<true>(g, top, half) : find_tile<false>(g, top, half);
    }
  }
}

}  // namespace pagoda
