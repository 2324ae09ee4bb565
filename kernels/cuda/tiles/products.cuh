// The matrix products of linear layers, with one weight or with one for each expert: HEXA-MoE's
// ESMM and ESTMM (3.1, 3.2), over tensor cores or plain arithmetic (unit.cuh). A list among the
// kernel's arguments assigns rows to experts, whose weights lie anywhere, and so may rows.
//
// An element of ESMM is one row times one column in order of depth (in fp16, tile by tile, each
// tile's products summed first: fp16_tile.cuh). An element of ESTMM is a sum over rows in kRowBlock
// blocks of its expert, in order. Neither depends on the tile or the launch: an expert alone has
// the bits it has in a group, and small tiles give the bits of large ones.
#pragma once

#include "kernels/cuda/tiles/fp16_tile.cuh"
#include "kernels/cuda/tiles/unit.cuh"
#include "kernels/ops.h"

namespace pagoda::PAGODA_MACHINE {

// A block of threads computes kM x kN, each warp 16 kMTiles x 8 kNTiles of it. Tiles of operands
// are kDepth deep, and kStages of them are on their way at once. Tiles that become fp16 have one
// stage, since such processors have no asynchronous copies and little shared memory; other blocks
// compute while it is loaded.
template <typename UnitType, int kRows, int kColumns, int kWarpRows, int kWarpColumns>
struct BlockShape {
  using Unit = UnitType;
  using T = typename Unit::Element;
  static constexpr int kM = kRows, kN = kColumns;
  static constexpr int kMTiles = kM / kWarpRows / 16, kNTiles = kN / kWarpColumns / 8;
  static constexpr int kThreads = kWarpRows * kWarpColumns * kWarp;
  static constexpr int kDepth = 128 / static_cast<int>(sizeof(T)), kStages = Unit::kScaled ? 1 : 3;
  static constexpr int kStageBytes = (kM + kN) * 128, kListBytes = kM * 8;
  static constexpr int kScaleBytes = Unit::kScaled ? (kM + kN) * int{sizeof(RowScale)} : 0;
  static constexpr int kSharedBytes = kStages * kStageBytes + kListBytes + kScaleBytes;
  using Sums = float[kMTiles][kNTiles][4];

  PAGODA_GPU static int first_row() { return warp_number() / kWarpColumns * kMTiles * 16; }
  PAGODA_GPU static int first_column() { return warp_number() % kWarpColumns * kNTiles * 8; }
  PAGODA_GPU static T* left_stage(int stage) {
    return reinterpret_cast<T*>(shared_memory() + stage * kStageBytes);
  }
  PAGODA_GPU static T* right_stage(int stage) { return left_stage(stage) + kM * kDepth; }
  // Where each row of the left tile is.
  PAGODA_GPU static const T** row_list() {
    return reinterpret_cast<const T**>(shared_memory() + kStages * kStageBytes);
  }

  // The scales of the left tile's rows, then those of the right one's columns.
  PAGODA_GPU static RowScale* scales() {
    return reinterpret_cast<RowScale*>(shared_memory() + kStages * kStageBytes + kListBytes);
  }

  PAGODA_GPU static void clear(Sums& sums) {
    PAGODA_UNROLL
    for (int m = 0; m < kMTiles; ++m) {
      PAGODA_UNROLL
      for (int n = 0; n < kNTiles; ++n) {
        PAGODA_UNROLL
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
      }
    }
  }
  // Calls body(m, n, i, row, column) for the thread's sums; a loop over registers must unroll it.
  template <typename Body>
  PAGODA_GPU static void for_all(const Body& body) {
    for_pairs([&](int m, int n, int i, int row, int column) {
      body(m, n, i, row, column);
      body(m, n, i + 1, row, column + 1);
    });
  }
  // The same for sums i and i + 1, which lie beside one another, the first in an even column.
  template <typename Body>
  PAGODA_GPU static void for_pairs(const Body& body) {
    const int row0 = first_row() + lane_number() / 4;
    const int column0 = first_column() + lane_number() % 4 * 2;
    PAGODA_UNROLL
    for (int m = 0; m < kMTiles; ++m) {
      PAGODA_UNROLL
      for (int i = 0; i < 4; i += 2) {
        PAGODA_UNROLL
        for (int n = 0; n < kNTiles; ++n) body(m, n, i, row0 + 16 * m + 4 * i, column0 + 8 * n);
      }
    }
  }

  // load(step, stage) fills a stage, compute(step, stage) uses it: kStages - 1 loads are on their
  // way while one is computed with. Steps are loaded in their order.
  template <typename Load, typename Compute>
  PAGODA_GPU static void pipeline(int steps, const Load& load, const Compute& compute) {
    if constexpr (kStages == 1) {
      for (int step = 0; step < steps; ++step) {
        sync_block();  // nobody reads the stage any more
        load(step, 0);
        commit_copies();
        wait_copies<0>();
        sync_block();
        compute(step, 0);
      }
    } else {
      for (int step = 0; step < kStages - 1; ++step) {
        if (step < steps) load(step, step);
        commit_copies();
      }
      int stage = 0, before = kStages - 1;
      for (int step = 0; step < steps; ++step) {
        wait_copies<kStages - 2>();
        sync_block();  // this stage is there for all, and nobody reads the one before it
        if (step + kStages - 1 < steps) load(step + kStages - 1, before);
        commit_copies();
        compute(step, stage);
        before = stage;
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      wait_copies<0>();
    }
  }
};

// sums += left right, the tiles of a stage.
template <typename Shape, bool kLeftDepthInRows, bool kRightDepthInRows, typename LeftTile,
          typename RightTile>
PAGODA_GPU void multiply_stage(const LeftTile& left, const RightTile& right,
                               typename Shape::Sums& sums) {
  using Unit = typename Shape::Unit;
  const auto multiply = [&](typename Shape::Sums& to) {
    multiply_tiles<Unit, kLeftDepthInRows, kRightDepthInRows, Shape::kDepth>(
        left, Shape::first_row(), right, Shape::first_column(), to);
  };
  if constexpr (!Unit::kScaled) {
    multiply(sums);
  } else {
    RowScale *of_left = Shape::scales(), *of_right = of_left + Shape::kM;
    to_fp16<Shape::kThreads, kLeftDepthInRows>(left, of_left);
    to_fp16<Shape::kThreads, kRightDepthInRows>(right, of_right);
    sync_block();
    typename Shape::Sums products;
    Shape::clear(products);
    multiply(products);
    Shape::for_all([&](int m, int n, int i, int row, int column) {
      sums[m][n][i] += times(products[m][n][i], of_left[row], of_right[column]);
    });
  }
}

// Shapes of ESMM and of ESTMM, which keeps two sums of each element: two blocks of either share a
// multiprocessor. ESMM with 64 x 64 sums a warp, which read shared memory less often, was no faster
// on an H200.
using LargeShape = BlockShape<TensorUnit, 128, 128, 2, 4>;
using LargeGradientShape = BlockShape<TensorUnit, 128, 64, 2, 2>;
template <typename Unit>
using SmallShape = BlockShape<Unit, 64, 64, 2, 2>;

// The rows of each weight: a part of a kernel's arguments.
template <typename W>
struct WeightRows {
  struct Entry {
    W* weight;
    int32_t first, count;
  };
  int32_t entries;
  Entry of[kMostTogether];

  // Tile i, where every entry's first row begins a tile.
  PAGODA_GPU RowTile tile(int64_t i, int64_t tile_rows) const {
    for (int32_t e = 0; e < entries; ++e) {
      const int64_t tiles = tiles_of(of[e].count, tile_rows);
      if (i < tiles) {
        const int64_t row = i * tile_rows;
        return {e, static_cast<int32_t>(of[e].first + row),
                static_cast<int32_t>(smaller(tile_rows, of[e].count - row))};
      }
      i -= tiles;
    }
    return {-1, 0, 0};
  }
};

// Rows of a call: of a matrix, or each where it is (InputRows).
template <typename T>
struct RowsOf {
  Matrix<T> matrix;  // without a base where there is `each`
  const void* const* each;

  PAGODA_GPU const T* at(int64_t i) const {
    if (each != nullptr) return static_cast<const T*>(each[i]);
    return matrix.base + i * matrix.stride;
  }
};
template <typename T>
RowsOf<T> rows_of(const InputRows& rows, int64_t dim) {
  return {matrix_of<T>(rows.dense, dim), rows.each};
}

// Lists the rows of several experts, whose weights are gradients. Returns a bit for each that is
// added to what is there.
inline uint32_t list_gradients(std::span<const RowsOfGradient> experts, WeightRows<float>& listed) {
  CHECK(std::ssize(experts) <= kMostTogether);
  uint32_t add = 0;
  for (const RowsOfGradient& e : experts) {
    CHECK(e.first >= 0 && e.count >= 0 && e.first + e.count <= INT32_MAX);
    add |= (e.add ? 1u : 0u) << listed.entries;
    listed.of[listed.entries++] = {e.dw, static_cast<int32_t>(e.first),
                                   static_cast<int32_t>(e.count)};
  }
  return add;
}

// The biases of WeightRows' entries, or none.
template <typename T>
struct WeightBiases {
  const T* of[kMostTogether];
};

// Stores value, rounded, and behind it `next` if there are `both`: at once, if all pairs of the
// matrix lie where that can be.
template <typename Y>
PAGODA_GPU void store_pair(Y* target, float value, float next, bool both, bool at_once) {
  struct alignas(8) Floats {
    float first, second;
  };
  if (!at_once) {
    target[0] = rounded<Y>(value);
    if (both) target[1] = rounded<Y>(next);
  } else if constexpr (std::is_same_v<Y, bf16>) {
    store_whole(target, bf16_pair(value, next));
  } else {
    store_whole(target, Floats{value, next});
  }
}

// out (rows, columns) = x (rows, depth) w, where w holds (columns, depth) if kDepthInRows, else
// (depth, columns). Blocks: row tiles x column tiles, the columns of a row tile next to each other.
template <typename Shape, bool kDepthInRows>
struct Esmm {
  using Unit = typename Shape::Unit;
  using T = typename Shape::T;
  static constexpr int kBlocksAtOnce =
      std::is_same_v<Unit, TensorUnit> ? 512 / Shape::kThreads : 1;  // 128 registers a thread
  static constexpr int kThreads = Shape::kThreads, kSharedBytes = Shape::kSharedBytes;
  using LeftTile = Tile<T, Shape::kM, Shape::kDepth>;
  using RightTile = Tile<T, kDepthInRows ? Shape::kN : Shape::kDepth,
                         kDepthInRows ? Shape::kDepth : Shape::kN>;

  RowsOf<T> x;
  Matrix<T> w;  // the stride and the alignment of all weights
  WeightRows<const T> listed;
  WeightBiases<T> biases;
  int64_t depth, columns;
  void* y;
  DType y_dt;
  bool y_in_pairs;  // elements of even columns lie where one instruction stores two

  PAGODA_BOTH int64_t column_tiles() const { return tiles_of(columns, Shape::kN); }

  PAGODA_GPU void operator()() const {
    const int64_t row_tile = quotient(block_number(), column_tiles());
    const int64_t column0 = (block_number() - row_tile * column_tiles()) * Shape::kN;
    const RowTile tile = listed.tile(row_tile, Shape::kM);
    if (tile.expert < 0 || tile.rows <= 0) return;
    for (int i = thread_number(); i < Shape::kM; i += kThreads) {
      // What lies behind the last row is computed like it, and not stored.
      Shape::row_list()[i] = x.at(tile.row + smaller(i, tile.rows - 1));
    }
    sync_block();
    typename Shape::Sums sums;
    Shape::clear(sums);
    multiply(tile, column0, sums);
    store(tile, column0, sums);
  }

  PAGODA_GPU void multiply(const RowTile& tile, int64_t column0,
                           typename Shape::Sums& sums) const {
    const Matrix<T> weight{listed.of[tile.expert].weight, w.stride, w.aligned};
    const int last = static_cast<int>(smaller(columns - column0, Shape::kN)) - 1;
    Shape::pipeline(
        static_cast<int>(tiles_of(depth, Shape::kDepth)),
        [&](int step, int stage) {
          const int64_t depth0 = int64_t{step} * Shape::kDepth;
          const T* const* rows = Shape::row_list();
          load_rows_at<kThreads>(LeftTile{Shape::left_stage(stage)}, x.matrix.aligned, Shape::kM,
                                 rows[0], depth0, depth, [&](int i) { return rows[i]; });
          const RightTile right{Shape::right_stage(stage)};
          if constexpr (kDepthInRows) {  // behind the last column as behind the last row
            const T* first = weight.base + column0 * weight.stride;
            load_rows_at<kThreads>(
                right, weight.aligned, Shape::kN, first, depth0, depth,
                [&](int i) -> const T* { return first + (i < last ? i : last) * weight.stride; });
          } else {
            load_tile<kThreads>(right, weight, depth0, depth - depth0, column0, columns);
          }
        },
        [&](int, int stage) {
          multiply_stage<Shape, true, kDepthInRows>(LeftTile{Shape::left_stage(stage)},
                                                    RightTile{Shape::right_stage(stage)}, sums);
        });
  }

  // y[i] = round(sum + bias)
  PAGODA_GPU void store(const RowTile& tile, int64_t column0,
                        const typename Shape::Sums& sums) const {
    y_dt == DType::kF32 ? store_as<float>(tile, column0, sums)
                        : store_as<bf16>(tile, column0, sums);
  }
  template <typename Y>
  PAGODA_GPU void store_as(const RowTile& tile, int64_t column0,
                           const typename Shape::Sums& sums) const {
    const T* bias = biases.of[tile.expert];
    Y* first = static_cast<Y*>(y) + tile.row * columns + column0;
    const int64_t there = columns - column0;
    Shape::for_pairs([&](int m, int n, int i, int row, int column) {
      if (row >= tile.rows || column >= there) return;
      float value = sums[m][n][i], next = sums[m][n][i + 1];
      const bool both = column + 1 < there;
      if (bias != nullptr) {
        value += widen(bias[column0 + column]);
        if (both) next += widen(bias[column0 + column + 1]);
      }
      store_pair(first + row * columns + column, value, next, both, y_in_pairs);
    });
  }
};

// dw_e (out, in) += dy^T x over the rows of each expert. Blocks: experts x tiles of out x tiles of
// in.
template <typename Shape>
struct Estmm {
  using T = typename Shape::T;
  static constexpr int kThreads = Shape::kThreads, kSharedBytes = Shape::kSharedBytes;
  static constexpr int kSteps = kRowBlock / Shape::kDepth;
  static_assert(kRowBlock % Shape::kDepth == 0);
  using LeftTile = Tile<T, Shape::kDepth, Shape::kM>;
  using RightTile = Tile<T, Shape::kDepth, Shape::kN>;

  RowsOf<T> dy, x;
  WeightRows<float> listed;
  int64_t out, in;
  uint32_t add;   // bit e: add to dw; else dw counts as zeros
  bool in_pairs;  // elements of even columns lie where one instruction stores two

  PAGODA_BOTH int64_t expert_blocks() const {
    return tiles_of(out, Shape::kM) * tiles_of(in, Shape::kN);
  }

  PAGODA_GPU void operator()() const {
    const int64_t expert = quotient(block_number(), expert_blocks());
    const int64_t tile = block_number() - expert * expert_blocks();
    const int64_t row_tile = quotient(tile, tiles_of(in, Shape::kN));
    const int64_t row0 = row_tile * Shape::kM;
    const int64_t column0 = (tile - row_tile * tiles_of(in, Shape::kN)) * Shape::kN;
    const int64_t first = listed.of[expert].first, end = first + listed.of[expert].count;
    float* target = listed.of[expert].weight;
    typename Shape::Sums total;
    Shape::clear(total);
    if ((add >> expert & 1u) != 0) {
      Shape::for_all([&](int m, int n, int i, int row, int column) {
        if (row0 + row < out && column0 + column < in) {
          total[m][n][i] = target[(row0 + row) * in + column0 + column];
        }
      });
    }
    multiply(first, end, row0, column0, total);
    Shape::for_pairs([&](int m, int n, int i, int row, int column) {
      if (row0 + row >= out || column0 + column >= in) return;
      store_pair(target + (row0 + row) * in + column0 + column, total[m][n][i], total[m][n][i + 1],
                 column0 + column + 1 < in, in_pairs);
    });
  }

  // REQUIRES: first < end.
  template <typename TileType>
  PAGODA_GPU static void load(const TileType& tile, const RowsOf<T>& rows, int64_t first,
                              int64_t end, int64_t column, int64_t columns) {
    if (rows.each == nullptr) {
      load_tile<kThreads>(tile, rows.matrix, first, end - first, column, columns);
      return;
    }
    const void* const* each = rows.each + first;
    load_rows_at<kThreads>(tile, rows.matrix.aligned, end - first, static_cast<const T*>(each[0]),
                           column, columns, [&](int i) { return static_cast<const T*>(each[i]); });
  }

  PAGODA_GPU void multiply(int64_t first, int64_t end, int64_t row0, int64_t column0,
                           typename Shape::Sums& total) const {
    typename Shape::Sums sums;
    Shape::clear(sums);
    const int steps = static_cast<int>(tiles_of(end - first, Shape::kDepth));
    Shape::pipeline(
        steps,
        [&](int step, int stage) {
          const int64_t row = first + int64_t{step} * Shape::kDepth;
          load(LeftTile{Shape::left_stage(stage)}, dy, row, end, row0, out);
          load(RightTile{Shape::right_stage(stage)}, x, row, end, column0, in);
        },
        [&](int step, int stage) {
          multiply_stage<Shape, false, false>(LeftTile{Shape::left_stage(stage)},
                                              RightTile{Shape::right_stage(stage)}, sums);
          if (step % kSteps != kSteps - 1 && step != steps - 1) return;
          Shape::for_all([&](int m, int n, int i, int, int) { total[m][n][i] += sums[m][n][i]; });
          Shape::clear(sums);
        });
  }
};

}  // namespace pagoda::PAGODA_MACHINE
