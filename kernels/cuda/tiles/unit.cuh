// The units that a warp multiplies with: tensor cores of bf16 or of fp16, or plain arithmetic for
// fp32 elements. Kernels are written once for all of them.
//
// A unit multiplies 16 x kDepth by kDepth x 8 into 16 x 8 sums. Of the sums, thread l of the warp
// holds rows g = l / 4 and g + 8, columns 2 (l % 4) and the next, as c[4] row by row: the layout of
// PTX's m16n8k16. A sum is added to in order of depth, so it does not depend on where in a tile,
// or in which tile, its row and column lie.
//
//   load_left(tile, row, depth)    rows [row, row + 16), depths [depth, depth + kDepth)
//   load_right(tile, column, depth, r)   columns [column, column + 16): r[2]
//   left_of_sums(c, step)          rounded sums as a left operand: c[i] are columns [8 i, 8 i + 8)
// A tile holds depths along its rows (kDepthInRows: row r is row or column r of the operand) or
// across them (tile row d is depth d).
#pragma once

#include "kernels/cuda/tiles/tile.cuh"

namespace pagoda::PAGODA_MACHINE {

struct TensorUnit {
  using Element = bf16;
  static constexpr bool kScaled = false;  // true: of tiles that to_fp16() has made fp16
  static constexpr int kDepth = 16;
  struct Left {
    uint32_t v[4];
  };
  struct Right {
    uint32_t v[2];
  };

  template <bool kDepthInRows, typename TileType>
  PAGODA_GPU static Left load_left(const TileType& tile, int row, int depth) {
    Left left;
    const int lane = lane_number(), upper = lane / 16;  // matrices 2 and 3: depths + 8
    if constexpr (kDepthInRows) {
      load_matrices<false>(left.v, tile.chunk(row + lane % 16, depth / 8 + upper));
    } else {
      const int at_depth = depth + upper * 8 + lane % 8;
      load_matrices<true>(left.v, tile.chunk(at_depth, row / 8 + lane / 8 % 2));
    }
    return left;
  }
  template <bool kDepthInRows, typename TileType>
  PAGODA_GPU static void load_right(const TileType& tile, int column, int depth, Right (&r)[2]) {
    uint32_t v[4];
    const int lane = lane_number(), upper = lane / 16;  // matrices 2 and 3: columns + 8
    if constexpr (kDepthInRows) {
      load_matrices<false>(v, tile.chunk(column + upper * 8 + lane % 8,
                                         depth / 8 + lane / 8 % 2));
    } else {
      load_matrices<true>(v, tile.chunk(depth + lane % 16, column / 8 + upper));
    }
    r[0] = {{v[0], v[1]}};
    r[1] = {{v[2], v[3]}};
  }
  template <int kCount>
  PAGODA_GPU static Left left_of_sums(const float (&c)[kCount][4], int step) {
    return left_of_pairs(c[2 * step], c[2 * step + 1],
                         [](float low, float high) { return bf16_pair(low, high); });
  }
  template <typename Pair>
  PAGODA_GPU static Left left_of_pairs(const float (&low)[4], const float (&high)[4],
                                       const Pair& pair) {
    return {{pair(low[0], low[1]), pair(low[2], low[3]), pair(high[0], high[1]),
             pair(high[2], high[3])}};
  }
  PAGODA_GPU static void multiply(float (&c)[4], const Left& a, const Right& b) {
    multiply_add(c, a.v, b.v);
  }
};

// Tiles have the layout of TensorUnit's; the numbers in them are fp16.
struct Fp16Unit : TensorUnit {
  static constexpr bool kScaled = true;
  template <int kCount>
  PAGODA_GPU static Left left_of_sums(const float (&c)[kCount][4], int step) {
    return left_of_pairs(c[2 * step], c[2 * step + 1], [](float low, float high) {
      return uint32_t{fp16_bits(low)} | uint32_t{fp16_bits(high)} << 16;
    });
  }
  PAGODA_GPU static void multiply(float (&c)[4], const Left& a, const Right& b) {
    multiply_add_fp16(c, a.v, b.v);
  }
};

template <typename T>
struct PlainUnit {
  using Element = T;
  static constexpr bool kScaled = false;
  static constexpr int kDepth = 4;
  struct Left {
    float v[2][kDepth];
  };
  struct Right {
    float v[2][kDepth];
  };

  template <bool kDepthInRows, typename TileType>
  PAGODA_GPU static float element(const TileType& tile, int row, int depth) {
    return widen(kDepthInRows ? *tile.at(row, depth) : *tile.at(depth, row));
  }
  template <bool kDepthInRows, typename TileType>
  PAGODA_GPU static Left load_left(const TileType& tile, int row, int depth) {
    Left left;
    const int first = row + lane_number() / 4;
    PAGODA_UNROLL
    for (int d = 0; d < kDepth; ++d) {
      left.v[0][d] = element<kDepthInRows>(tile, first, depth + d);
      left.v[1][d] = element<kDepthInRows>(tile, first + 8, depth + d);
    }
    return left;
  }
  template <bool kDepthInRows, typename TileType>
  PAGODA_GPU static void load_right(const TileType& tile, int column, int depth, Right (&r)[2]) {
    const int first = column + lane_number() % 4 * 2;
    PAGODA_UNROLL
    for (int i = 0; i < 2; ++i) {
      PAGODA_UNROLL
      for (int d = 0; d < kDepth; ++d) {
        r[i].v[0][d] = element<kDepthInRows>(tile, first + 8 * i, depth + d);
        r[i].v[1][d] = element<kDepthInRows>(tile, first + 8 * i + 1, depth + d);
      }
    }
  }
  // Columns 4 step .. 4 step + 3 lie with two lanes of the same row, two each.
  template <int kCount>
  PAGODA_GPU static Left left_of_sums(const float (&c)[kCount][4], int step) {
    Left left;
    const auto& from = c[step / 2];
    const int holder = lane_number() / 4 * 4 + step % 2 * 2;
    PAGODA_UNROLL
    for (int d = 0; d < kDepth; ++d) {
      left.v[0][d] = as_stored<T>(shuffle(from[d % 2], holder + d / 2));
      left.v[1][d] = as_stored<T>(shuffle(from[2 + d % 2], holder + d / 2));
    }
    return left;
  }
  PAGODA_GPU static void multiply(float (&c)[4], const Left& a, const Right& b) {
    PAGODA_UNROLL
    for (int d = 0; d < kDepth; ++d) {
      c[0] += a.v[0][d] * b.v[0][d];
      c[1] += a.v[0][d] * b.v[1][d];
      c[2] += a.v[1][d] * b.v[0][d];
      c[3] += a.v[1][d] * b.v[1][d];
    }
  }
};

// c (16 kMTiles, 8 kNTiles) += left (rows from `row` on) times right (columns from `column` on)
// over a depth of kDepth.
template <typename Unit, bool kLeftDepthInRows, bool kRightDepthInRows, int kDepth, int kMTiles,
          int kNTiles, typename LeftTile, typename RightTile>
PAGODA_GPU void multiply_tiles(const LeftTile& left, int row, const RightTile& right, int column,
                               float (&c)[kMTiles][kNTiles][4]) {
  static_assert(kNTiles % 2 == 0);
  PAGODA_UNROLL
  for (int depth = 0; depth < kDepth; depth += Unit::kDepth) {
    typename Unit::Left a[kMTiles];
    PAGODA_UNROLL
    for (int m = 0; m < kMTiles; ++m) {
      a[m] = Unit::template load_left<kLeftDepthInRows>(left, row + 16 * m, depth);
    }
    PAGODA_UNROLL
    for (int n = 0; n < kNTiles; n += 2) {
      typename Unit::Right b[2];
      Unit::template load_right<kRightDepthInRows>(right, column + 8 * n, depth, b);
      PAGODA_UNROLL
      for (int m = 0; m < kMTiles; ++m) {
        Unit::multiply(c[m][n], a[m], b[0]);
        Unit::multiply(c[m][n + 1], a[m], b[1]);
      }
    }
  }
}

// The same with rounded sums as the left operand and the columns of right from `column` on: c (16,
// 8 kNTiles) += sums (16, 8 kCount) right.
template <typename Unit, int kCount, int kNTiles, typename RightTile>
PAGODA_GPU void multiply_sums(const float (&sums)[kCount][4], const RightTile& right, int column,
                              float (&c)[kNTiles][4]) {
  PAGODA_UNROLL
  for (int step = 0; step < kCount * 8 / Unit::kDepth; ++step) {
    const typename Unit::Left a = Unit::left_of_sums(sums, step);
    PAGODA_UNROLL
    for (int n = 0; n < kNTiles; n += 2) {
      typename Unit::Right b[2];
      Unit::template load_right<false>(right, column + 8 * n, step * Unit::kDepth, b);
      Unit::multiply(c[n], a, b[0]);
      Unit::multiply(c[n + 1], a, b[1]);
    }
  }
}

// body(i, row, column) for each of a thread's sums c[i] in a 16 x 8 tile.
template <typename Body>
PAGODA_GPU void for_sums(const Body& body) {
  PAGODA_UNROLL
  for (int i = 0; i < 4; ++i) body(i, lane_number() / 4 + i / 2 * 8, lane_number() % 4 * 2 + i % 2);
}

}  // namespace pagoda::PAGODA_MACHINE
