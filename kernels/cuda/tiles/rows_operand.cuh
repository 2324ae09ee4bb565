// Tiles of tokens as operands of attention's products: rows times rows (scores), and probabilities
// times rows. If the unit's numbers are fp16 (fp16_tile.cuh) a tile's rows are scaled once for both
// products: in the second one, whose depth is the rows, their scales go over to the left operand,
// which is scaled row by row in registers.
#pragma once

#include "kernels/cuda/tiles/fp16_tile.cuh"
#include "kernels/cuda/tiles/unit.cuh"

namespace pagoda::PAGODA_MACHINE {

template <typename UnitType, typename TileType>
struct RowsOperand {
  using Unit = UnitType;
  static constexpr int kScaleBytes =
      Unit::kScaled ? TileType::kRows * static_cast<int>(sizeof(RowScale)) : 0;
  TileType tile;
  RowScale* scales;  // kScaleBytes long

  // Call once, when all threads see the tile; after one more barrier it can be multiplied with.
  template <int kThreads>
  PAGODA_GPU void prepare() const {
    if constexpr (Unit::kScaled) rows_to_fp16<kThreads>(tile, scales);
  }
};

// c (16, 8 kTiles) = rows [row, row + 16) of left times the rows of right.
template <typename Left, typename Right, int kTiles>
PAGODA_GPU void multiply_rows(const Left& left, int row, const Right& right,
                              float (&c)[1][kTiles][4]) {
  using Unit = typename Left::Unit;
  constexpr int kDepth = decltype(left.tile)::kColumns;
  PAGODA_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    PAGODA_UNROLL
    for (int i = 0; i < 4; ++i) c[0][n][i] = 0.0f;
  }
  multiply_tiles<Unit, true, true, kDepth>(left.tile, row, right.tile, 0, c);
  if constexpr (Unit::kScaled) {
    PAGODA_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      for_sums([&](int i, int tile_row, int column) {
        c[0][n][i] = times(c[0][n][i], left.scales[row + tile_row], right.scales[8 * n + column]);
      });
    }
  }
}

// c (16, 8 kTiles) += sums (16, 8 kCount), rounded, times the rows of right.
template <int kCount, int kTiles, typename Right>
PAGODA_GPU void multiply_sums_by_rows(const float (&sums)[kCount][4], const Right& right,
                                      float (&c)[kTiles][4]) {
  using Unit = typename Right::Unit;
  if constexpr (!Unit::kScaled) {
    multiply_sums<Unit>(sums, right.tile, 0, c);
  } else {
    float left[kCount][4];
    uint32_t largest[2] = {};
    PAGODA_UNROLL
    for (int n = 0; n < kCount; ++n) {
      for_sums([&](int i, int, int column) {
        const RowScale scale = right.scales[8 * n + column];
        left[n][i] = as_stored<bf16>(sums[n][i]) * scale.half * scale.rest;
        largest[i / 2] = larger(largest[i / 2], bits_of(left[n][i]) & 0x7fffffffu);
      });
    }
    int e[2];
    PAGODA_UNROLL
    for (int r = 0; r < 2; ++r) {  // four lanes share a row
      largest[r] = larger(largest[r], shuffle_xor(largest[r], 1));
      e[r] = exponent_of_row(larger(largest[r], shuffle_xor(largest[r], 2)));
    }
    PAGODA_UNROLL
    for (int n = 0; n < kCount; ++n) {
      PAGODA_UNROLL
      for (int i = 0; i < 4; ++i) left[n][i] *= power_of_two(-e[i / 2]);
    }
    constexpr int kAtOnce = 4;  // few products have room in registers beside all sums
    static_assert(kTiles % kAtOnce == 0);
    PAGODA_UNROLL
    for (int first = 0; first < kTiles; first += kAtOnce) {
      float products[kAtOnce][4] = {};
      multiply_sums<Unit>(left, right.tile, 8 * first, products);
      PAGODA_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        PAGODA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const RowScale scale = scale_of_row(e[i / 2]);
          c[first + n][i] += products[n][i] * scale.half * scale.rest;
        }
      }
    }
  }
}

}  // namespace pagoda::PAGODA_MACHINE
