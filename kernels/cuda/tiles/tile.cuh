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

// Fills a tile with columns [column, column + kColumns) of the rows that row_at(i) points to for
// tile row i, nullptr: a row of zeros. Columns from `columns` on are zeros. Threads share out the
// chunks. `any`: one of the rows.
template <int kThreads, typename TileType, typename T, typename RowAt>
PAGODA_GPU void load_rows_at(const TileType& tile, bool aligned, const T* any, int64_t column,
                             int64_t columns, const RowAt& row_at) {
  constexpr int kAll = TileType::kRows * TileType::kChunks;
  static_assert(kAll % kThreads == 0);
  PAGODA_UNROLL
  for (int j = 0; j < kAll / kThreads; ++j) {
    const int i = thread_number() + j * kThreads;
    const int row = i / TileType::kChunks, chunk = i % TileType::kChunks;
    const int64_t first = column + chunk * TileType::kChunk;
    const T* from = row_at(row);
    const bool there = from != nullptr && first < columns;
    const T* source = there ? from + first : any;
    copy_chunk(tile.chunk(row, chunk), source, there ? columns - first : 0, aligned);
  }
}

// The same of the rows of a matrix that row_of(i) names, -1: a row of zeros.
template <int kThreads, typename TileType, typename T, typename RowOf>
PAGODA_GPU void load_tile(const TileType& tile, const Matrix<T>& matrix, int64_t column,
                          int64_t columns, const RowOf& row_of) {
  load_rows_at<kThreads>(tile, matrix.aligned, matrix.base, column, columns,
                         [&](int i) -> const T* {
                           const int64_t row = row_of(i);
                           return row >= 0 ? matrix.base + row * matrix.stride : nullptr;
                         });
}

}  // namespace pagoda::PAGODA_MACHINE
