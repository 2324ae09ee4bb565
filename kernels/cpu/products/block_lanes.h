// The vector kernels of block_kernel.h, one source for every width. `Lanes` has the vectors of one
// instruction set, kWidth floats each: Vector, and of the same bytes Words (uint32_t). A group of
// kRows rows is multiplied at once. The file that includes this sets the compiler's target to it.
#pragma once

#include <cstring>

#include "kernels/cpu/products/block_kernel.h"

namespace pagoda {

inline constexpr int64_t kTilePairs = kTileSide * kTileSide;  // pairs of positions in a tile

// ---- a step, widened ----

// Room in which operands that are not packed in the wide form are widened, a step at a time and
// once for all groups of rows and vectors of columns.
struct WideStep {
  alignas(64) float left[2 * kBlock * kTileSide];  // (rows, even and odd, pairs)
  alignas(64) float right[4 * kTilePairs];         // (tiles, even and odd, pairs, columns)
};

// Pairs of bf16, one after the other: the first of each to `even`, the second to `odd`.
template <typename Lanes>
inline void widen_pairs(const std::byte* pairs, int64_t count, float* even, float* odd) {
  using Vector = typename Lanes::Vector;
  for (int64_t i = 0; i < count; i += Lanes::kWidth) {
    typename Lanes::Words both;
    std::memcpy(&both, pairs + 4 * i, sizeof both);
    Lanes::store(even + i, reinterpret_cast<Vector>(both << 16));
    Lanes::store(odd + i, reinterpret_cast<Vector>(both & 0xffff0000u));
  }
}

template <typename Lanes>
inline const float* wide_left(const BlockProduct& p, int64_t step, float* wide) {
  const std::byte* left = p.left + step * p.step_stride;
  if (p.left_form == StepForm::kWide) return reinterpret_cast<const float*>(left);
  for (int64_t r = 0; r < p.rows; ++r) {
    const std::byte* row = left + r % kTileSide * p.row_stride + r / kTileSide * p.tile_stride;
    float* even = wide + r * kBlock;
    widen_pairs<Lanes>(row, kTileSide, even, even + kTileSide);
  }
  return wide;
}

template <typename Lanes>
inline const float* wide_right(const BlockProduct& p, int64_t step, float* wide) {
  const std::byte* right = p.right + step * step_bytes(p.right_form);
  if (p.right_form == StepForm::kWide) return reinterpret_cast<const float*>(right);
  for (int64_t t = 0; t * kTileSide < p.cols; ++t) {
    float* even = wide + t * 2 * kTilePairs;
    widen_pairs<Lanes>(right + t * kTileBytes, kTilePairs, even, even + kTilePairs);
  }
  return wide;
}

// ---- sums ----

// A chain over `length` even or odd positions of a step, for Lanes::kRows rows by kVectors vectors
// of columns. All other loops are unrolled, so that sums stay in registers.
template <typename Lanes, int kVectors>
inline void add_chain(const float* left, const float* right, int64_t length,
                      typename Lanes::Vector (&chain)[Lanes::kRows][kVectors]) {
  typename Lanes::Vector sums[Lanes::kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < Lanes::kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Lanes::zero();
  }
#pragma GCC unroll 1
  for (int64_t pair = 0; pair < length; ++pair) {
    typename Lanes::Vector columns[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = v * Lanes::kWidth;
      columns[v] = Lanes::load(right + column / kTileSide * 2 * kTilePairs + pair * kTileSide +
                               column % kTileSide);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Lanes::kRows; ++r) {
      const auto factor = Lanes::broadcast(left + r * kBlock + pair);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Lanes::multiply_add(factor, columns[v], sums[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Lanes::kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) chain[r][v] = sums[r][v];
  }
}

// A step's place in its operands, and whether its sums are the first.
struct StepPlace {
  const float *left, *right;  // widened
  int64_t depth;
  bool add;
};

// Adds to the sums of a group of rows from `left` on the products of a step with the first kVectors
// vectors of columns from `right` on.
template <typename Lanes, int kVectors>
inline void add_step(const StepPlace& step, float* sums) {
  typename Lanes::Vector even[Lanes::kRows][kVectors], odd[Lanes::kRows][kVectors];
  add_chain<Lanes>(step.left, step.right, (step.depth + 1) / 2, even);
  add_chain<Lanes>(step.left + kTileSide, step.right + kTilePairs, step.depth / 2, odd);
#pragma GCC unroll 8
  for (int r = 0; r < Lanes::kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = v * Lanes::kWidth;
      float* at = sums + column / kTileSide * 256 + r * kTileSide + column % kTileSide;
      const auto before = step.add ? Lanes::load(at) : Lanes::zero();
      Lanes::store(at, Lanes::add(before, Lanes::add(even[r][v], odd[r][v])));
    }
  }
}

template <typename Lanes, int kVectors>
inline void add_columns(const BlockProduct& p, StepPlace step, int64_t tile) {
  step.right += tile * 2 * kTilePairs;
  for (int64_t row = 0; row < p.rows; row += Lanes::kRows) {
    float* sums = p.sums + row / kTileSide * 512 + row % kTileSide * kTileSide + tile * 256;
    add_step<Lanes, kVectors>(step, sums);
    step.left += Lanes::kRows * kBlock;
  }
}

template <typename Lanes>
inline void multiply_lanes(const BlockProduct& p) {
  static_assert(kTileSide % Lanes::kRows == 0 && kTileSide % Lanes::kWidth == 0);
  WideStep wide;
  // A group of rows may end behind the last row.
  for (int64_t r = p.rows; r % Lanes::kRows != 0; ++r) {
    for (int64_t i = 0; i < kBlock; ++i) wide.left[r * kBlock + i] = 0;
  }
  for (int64_t s = 0; s < p.steps; ++s) {
    ask_for(p.ahead, s);
    const StepPlace step{wide_left<Lanes>(p, s, wide.left), wide_right<Lanes>(p, s, wide.right),
                         s + 1 == p.steps ? p.last_depth : kBlock, p.add || s > 0};
    if (Lanes::kWidth < kTileSide || p.cols <= kTileSide) {
      constexpr int kVectors = kTileSide / Lanes::kWidth;
      for (int64_t tile = 0; tile * kTileSide < p.cols; ++tile) {
        add_columns<Lanes, kVectors>(p, step, tile);
      }
    } else {
      add_columns<Lanes, 2>(p, step, 0);
    }
  }
}

template <typename Lanes>
inline void write_lanes(const float* sums, float* target, int64_t stride) {
  for (int64_t r = 0; r < kBlock; ++r, target += stride) {
    const float* row = sums + r / kTileSide * 512 + r % kTileSide * kTileSide;
    for (int64_t c = 0; c < kBlock; c += Lanes::kWidth) {
      const auto v = Lanes::load(row + c / kTileSide * 256 + c % kTileSide);
      Lanes::stream(target + c, Lanes::add(v, Lanes::zero()));
    }
  }
}

template <typename Lanes>
inline int64_t saturate_lanes(int64_t rounds) {
  constexpr int kChains = 12;  // more than a processor has multiply-adds under way
  alignas(64) float values[kBlock] = {};
  typename Lanes::Vector sums[kChains];
  for (auto& sum : sums) {
    sum = Lanes::load(values);
    asm volatile("" : "+x"(sum));  // the compiler does not see that chains are equal
  }
  const typename Lanes::Vector factor = Lanes::load(values + kTileSide);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& sum : sums) sum = Lanes::multiply_add(factor, sum, sum);
  }
  for (auto& sum : sums) asm volatile("" : : "x"(sum));
  return rounds * kChains * Lanes::kWidth * 2;
}

}  // namespace pagoda
