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

// Depths (2i, 2i + 1) of half the columns of a right operand's step, rounded.
template <StepForm kForm>
PAGODA_INLINE void put_depths(std::byte* step, int64_t half, int64_t i, UVec even, UVec odd) {
  if constexpr (kForm == StepForm::kPairs) {
    put(step + half * kTileBytes + i * 64, (even >> 16) | (odd & 0xffff0000u));
  } else {
    put(step + half * 2 * kTileBytes + i * 64, even & 0xffff0000u);
    put(step + half * 2 * kTileBytes + kTileBytes + i * 64, odd & 0xffff0000u);
  }
}

// Depths [16 half, 16 half + 16) of row r of a left operand's step, rounded.
template <StepForm kForm>
PAGODA_INLINE void put_row(std::byte* step, int64_t r, int64_t half, UVec row) {
  if constexpr (kForm == StepForm::kPairs) {
    const HalfRow halves = __builtin_convertvector(row >> 16, HalfRow);
    std::memcpy(step + r * 64 + half * 32, &halves, sizeof halves);
  } else {
    const UVec wide = row & 0xffff0000u;
    const auto even = __builtin_shufflevector(wide, wide, 0, 2, 4, 6, 8, 10, 12, 14);
    const auto odd = __builtin_shufflevector(wide, wide, 1, 3, 5, 7, 9, 11, 13, 15);
    std::memcpy(step + r * 128 + half * 32, &even, sizeof even);
    std::memcpy(step + r * 128 + 64 + half * 32, &odd, sizeof odd);
  }
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
template <StepForm kForm, bool kDiagonal>
PAGODA_INLINE Vec weigh(const float* scores, float scale, Vec highest, int64_t half,
                        std::byte* step) {
  const Vec query = columns_of(half);
  Vec sum{};
  for (int64_t top = 0; top < 2; ++top) {
    const float* tile = tile_of(scores, 2 * top + half);
    for (int64_t r = 0; r < kTileSide; r += 2) {
      Vec even = exp2_lanes(load(tile + r * kTileSide) * scale - highest);
      Vec odd = exp2_lanes(load(tile + (r + 1) * kTileSide) * scale - highest);
      if (kDiagonal) {
        const auto key = static_cast<float>(top * kTileSide + r);
        even = query < key ? Vec{} : even;
        odd = query < key + 1.0f ? Vec{} : odd;
      }
      sum += even + odd;
      put_depths<kForm>(step, half, (top * kTileSide + r) / 2, rounded(even), rounded(odd));
    }
  }
  return sum;
}

// ---- backward: rows are queries ----

// Sixteen queries of a tile of keys; adds to the sums of their weights.
template <StepForm kForm>
PAGODA_INLINE Vec weigh_all(const float* scores, int64_t count, bool diagonal, float scale,
                            Vec highest, int64_t half, std::byte* weights) {
  Vec sums{};
  const int64_t whole = diagonal ? count - 1 : count;
  for (int64_t b = 0; b < whole; ++b) {
    sums += weigh<kForm, false>(scores + b * kBlockFloats, scale, highest, half,
                                weights + b * step_bytes(kForm));
  }
  if (diagonal) {
    sums += weigh<kForm, true>(scores + whole * kBlockFloats, scale, highest, half,
                               weights + whole * step_bytes(kForm));
  }
  return sums;
}

// Row `r` of a block, sixteen keys of it.
template <StepForm kForm, bool kDiagonal>
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
  put_row<kForm>(g.gradient_rows, r, half, gradients);
}

template <StepForm kForm, bool kDiagonal>
PAGODA_INLINE void find_tile(const ScoreGradient& g, int64_t top, int64_t half) {
  for (int64_t r = 0; r < kTileSide; r += 2) {
    const int64_t at = (2 * top + half) * 256 + r * kTileSide, row = top * kTileSide + r;
    UVec weights[2], gradients[2];
    find_row<kForm, kDiagonal>(g, row, half, at, weights[0], gradients[0]);
    find_row<kForm, kDiagonal>(g, row + 1, half, at + kTileSide, weights[1], gradients[1]);
    put_depths<kForm>(g.weights, half, row / 2, weights[0], weights[1]);
    put_depths<kForm>(g.gradients, half, row / 2, gradients[0], gradients[1]);
  }
}

template <StepForm kForm>
PAGODA_INLINE void find_tile(const ScoreGradient& g, int64_t top, int64_t half) {
  g.diagonal ? find_tile<kForm, true>(g, top, half) : find_tile<kForm, false>(g, top, half);
}

}  // namespace

PAGODA_TARGET_CLONES bool softmax_columns(const float* scores, int64_t count, bool diagonal,
                                          float scale, SoftmaxColumns& state, float* shrink,
                                          StepForm form, std::byte* weights) {
  bool shrinks = false;
  for (int64_t half = 0; half < 2; ++half) {
    float* highest = state.highest + half * kTileSide;
    float* sum = state.sum + half * kTileSide;
    const Vec before = load(highest);
    const Vec now = larger(before, highest_score(scores, count, diagonal, half) * scale);
    const Vec sums =
        form == StepForm::kPairs
            ? weigh_all<StepForm::kPairs>(scores, count, diagonal, scale, now, half, weights)
            : weigh_all<StepForm::kWide>(scores, count, diagonal, scale, now, half, weights);
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
      g.form == StepForm::kPairs ? find_tile<StepForm::kPairs>(g, top, half)
                                 : find_tile<StepForm::kWide>(g, top, half);
    }
  }
}

}  // namespace pagoda
