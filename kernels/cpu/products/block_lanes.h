// The vector kernels of block_kernel.h, one source for every width. `Lanes` has the vectors of one
// instruction set, kWidth floats each: Vector, and of the same bytes Words (uint32_t) and of half
// of them Halves (uint16_t). The file that includes this sets the compiler's target to it.
#pragma once

#include <cstring>

#include "kernels/cpu/products/block_kernel.h"

namespace pagoda {

// Pairs of bf16, the first of each into `low`.
template <typename Lanes>
inline void widen_pairs(const std::byte* pairs, typename Lanes::Vector& low,
                        typename Lanes::Vector& high) {
  const auto both = *reinterpret_cast<const typename Lanes::Words*>(pairs);
  low = reinterpret_cast<typename Lanes::Vector>(both << 16);
  high = reinterpret_cast<typename Lanes::Vector>(both & 0xffff0000u);
}

// bf16, one behind the other.
template <typename Lanes>
inline typename Lanes::Vector widen_row(const std::byte* row) {
  typename Lanes::Halves halves;
  std::memcpy(&halves, row, sizeof halves);
  using Words = typename Lanes::Words;
  return reinterpret_cast<typename Lanes::Vector>(__builtin_convertvector(halves, Words) << 16);
}

// What a group of Lanes::kRows rows adds to its sums at one step. left: (kRows, 32) widened, row
// stride kBlock; right: the step's tiles from the group's first column on; sums: (kRows, kColumns)
// with row stride 16, tiles one behind the other.
template <typename Lanes>
inline void add_step(const float* left, const std::byte* right, float* sums) {
  constexpr int kRows = Lanes::kRows, kVectors = Lanes::kVectors;
  using Vector = typename Lanes::Vector;
  Vector even[kRows][kVectors], odd[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) even[r][v] = odd[r][v] = Lanes::zero();
  }
  for (int64_t pair = 0; pair < kTileSide; ++pair) {
    Vector low[kVectors], high[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = v * Lanes::kWidth;
      const std::byte* at = right + column / kTileSide * kTileBytes + column % kTileSide * 4;
      widen_pairs<Lanes>(at + pair * 64, low[v], high[v]);
    }
    for (int r = 0; r < kRows; ++r) {
      const float* factors = left + r * kBlock + 2 * pair;
      const Vector a = Lanes::broadcast(factors), b = Lanes::broadcast(factors + 1);
      for (int v = 0; v < kVectors; ++v) {
        even[r][v] = Lanes::multiply_add(a, low[v], even[r][v]);
        odd[r][v] = Lanes::multiply_add(b, high[v], odd[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = v * Lanes::kWidth;
      float* at = sums + column / kTileSide * 256 + r * kTileSide + column % kTileSide;
      Lanes::store(at, Lanes::add(Lanes::load(at), Lanes::add(even[r][v], odd[r][v])));
    }
  }
}

// The step's left rows as fp32, (kBlock, kBlock).
template <typename Lanes>
inline void widen_left(const BlockProduct& p, int64_t step, float* wide) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const std::byte* row = p.left + r % kTileSide * p.row_stride +
                           r / kTileSide * p.tile_stride + step * p.step_stride;
    for (int64_t i = 0; i < kBlock; i += Lanes::kWidth) {
      Lanes::store(wide + r * kBlock + i, widen_row<Lanes>(row + 2 * i));
    }
  }
}

template <typename Lanes>
inline void multiply_lanes(const BlockProduct& p) {
  constexpr int64_t kColumns = Lanes::kVectors * Lanes::kWidth;
  alignas(64) float wide[kBlockFloats] = {};
  if (!p.add) {
    for (int64_t i = 0; i < kBlockFloats; ++i) p.sums[i] = 0;
  }
  for (int64_t step = 0; step < p.steps; ++step) {
    ask_for(p.ahead, step);
    widen_left<Lanes>(p, step, wide);
    for (int64_t column = 0; column < p.cols; column += kColumns) {
      const std::byte* right = p.right + step * kStepBytes + column / kTileSide * kTileBytes;
      for (int64_t row = 0; row < p.rows; row += Lanes::kRows) {
        float* sums = p.sums + row / kTileSide * 512 + row % kTileSide * kTileSide +
                      column / kTileSide * 256;
        add_step<Lanes>(wide + row * kBlock, right, sums);
      }
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
