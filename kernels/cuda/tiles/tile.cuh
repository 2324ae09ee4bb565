// Tiles of matrices in shared memory, and the loads that fill them.
//
// A row is cut into chunks of 16 bytes, which are swizzled: eight rows' chunks of one column lie in
// eight different groups of banks, so that neither ldmatrix nor asynchronous copies meet conflicts.
#pragma once

#include "kernels/cuda/machine/numbers.cuh"

namespace pagoda::PAGODA_MACHINE {

template <typename T, int kRowCount, int kColumnCount>
struct Tile {
  using Element = T;
  static constexpr int kRows = kRowCount, kColumns = kColumnCount;
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kColumns / kChunk;
  static constexpr int kBytes = kRows * kColumns * static_cast<int>(sizeof(T));
  static_assert(kChunks % 4 == 0 && kColumns % kChunk == 0);

  T* base;

  PAGODA_GPU T* chunk(int row, int i) const {
    const int swizzle = kChunks % 8 == 0 ? row & 7 : row >> 1 & 3;
    return base + row * kColumns + (i ^ swizzle) * kChunk;
  }
  PAGODA_GPU T* at(int row, int column) const {
    return chunk(row, column / kChunk) + column % kChunk;
  }
};

// A matrix in device memory: row r at base + r * stride. `aligned`: every row begins on 16 bytes.
template <typename T>
struct Matrix {
  const T* base;
  int64_t stride;
  bool aligned;
};
template <typename T>
Matrix<T> matrix_of(const void* base, int64_t stride) {
  const bool aligned = reinterpret_cast<uintptr_t>(base) % 16 == 0 &&
                       stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
  return {static_cast<const T*>(base), stride, aligned};
}

// A thread's share of a tile's chunks, when kThreads threads load it: chunk(j) of row(j), j below
// kCount. Where the tile's width allows it they lie below one another, so that their addresses in
// shared memory differ by constants.
template <int kThreads, typename TileType>
struct Share {
  static constexpr int kChunks = TileType::kChunks;
  static constexpr int kCount = TileType::kRows * kChunks / kThreads;
  static_assert(TileType::kRows * kChunks % kThreads == 0);

  PAGODA_GPU static int row(int j) {
    const unsigned thread = static_cast<unsigned>(thread_number());
    if constexpr (kThreads % kChunks == 0) {
      return static_cast<int>(thread / kChunks) + j * (kThreads / kChunks);
    } else {
      return static_cast<int>((thread + static_cast<unsigned>(j * kThreads)) / kChunks);
    }
  }
  PAGODA_GPU static int chunk(int j) {
    const unsigned thread = static_cast<unsigned>(thread_number());
    if constexpr (kThreads % kChunks == 0) {
      return static_cast<int>(thread % kChunks);
    } else {
      return static_cast<int>((thread + static_cast<unsigned>(j * kThreads)) % kChunks);
    }
  }
  PAGODA_GPU static typename TileType::Element* at(const TileType& tile, int j) {
    if constexpr (kThreads % kChunks == 0 && kThreads / kChunks % 8 == 0) {  // swizzled alike
      return tile.chunk(row(0), chunk(0)) + j * (kThreads / kChunks) * TileType::kColumns;
    } else {
      return tile.chunk(row(j), chunk(j));
    }
  }
};

// A chunk's first `count` elements, then zeros.
template <typename T>
PAGODA_GPU void copy_chunk(T* target, const T* source, int64_t count, bool aligned) {
  constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
  const int valid = static_cast<int>(count < 0 ? 0 : smaller(count, kChunk));
  if (aligned) {
    copy_async16(target, source, valid * static_cast<int>(sizeof(T)));
    return;
  }
  PAGODA_UNROLL
  for (int i = 0; i < kChunk; ++i) target[i] = i < valid ? source[i] : rounded<T>(0.0f);
}

// Fills a tile with columns [column, column + kColumns) of rows: row i begins at row_at(i), if
// i < `rows`; behind these, and from column `columns` on, are zeros. Every row begins on 16 bytes
// if `aligned`. `any`: one of the rows. A tile of which nothing lacks takes few instructions: by
// them, not by memory, products are limited otherwise.
template <int kThreads, typename TileType, typename T, typename RowAt>
PAGODA_GPU void load_rows_at(const TileType& tile, bool aligned, int64_t rows, const T* any,
                             int64_t column, int64_t columns, const RowAt& row_at) {
  using Chunks = Share<kThreads, TileType>;
  if (aligned && rows >= TileType::kRows && column + TileType::kColumns <= columns) {
    const T* from[Chunks::kCount];
    PAGODA_UNROLL
    for (int j = 0; j < Chunks::kCount; ++j) {
      from[j] = row_at(Chunks::row(j)) + (column + Chunks::chunk(j) * TileType::kChunk);
    }
    PAGODA_UNROLL
    for (int j = 0; j < Chunks::kCount; ++j) {
      copy_async16(Chunks::at(tile, j), from[j]);
    }
    return;
  }
  PAGODA_NO_UNROLL
  for (int j = 0; j < Chunks::kCount; ++j) {
    const int row = Chunks::row(j), chunk = Chunks::chunk(j);
    const int64_t first = column + chunk * TileType::kChunk;
    const bool there = row < rows && first < columns;
    const T* source = there ? row_at(row) + first : any;
    copy_chunk(Chunks::at(tile, j), source, there ? columns - first : 0, aligned);
  }
}

// The same of a matrix's rows from `row` on.
template <int kThreads, typename TileType, typename T>
PAGODA_GPU void load_tile(const TileType& tile, const Matrix<T>& matrix, int64_t row, int64_t rows,
                          int64_t column, int64_t columns) {
  const T* first = matrix.base + row * matrix.stride;
  load_rows_at<kThreads>(tile, matrix.aligned, rows, matrix.base, column, columns,
                         [&](int i) -> const T* { return first + i * matrix.stride; });
}

}  // namespace pagoda::PAGODA_MACHINE
