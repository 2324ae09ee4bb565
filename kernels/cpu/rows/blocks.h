// Loops over blocks of rows, and rows of either type seen as fp32.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "device/device.h"
#include "kernels/cpu/rows/row_math.h"
#include "kernels/cpu/rows/scratch.h"

namespace pagoda {

// Elements one thread should get at least, so that waking it pays.
inline constexpr int64_t kBlockElements = 16384;

// Rows per block for rows of `row_elements`, for kernels whose rows do not meet.
inline int64_t rows_per_block(int64_t row_elements) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, row_elements));
}

// body(begin, end) for blocks of `block` of [0, n), in parallel.
template <typename Body>
void for_blocks(ThreadPool& pool, int64_t n, int64_t block, Body&& body) {
  if (n <= 0) return;
  const int64_t count = div_ceil(n, block);
  if (count == 1) return body(int64_t{0}, n);
  pool.parallel_for(count, [&](int64_t i) {
    body(i * block, std::min(n, (i + 1) * block));
  });
}

// Address of element `i` of a tensor of type dt.
inline const void* at(DType dt, const void* base, int64_t i) {
  return static_cast<const std::byte*>(base) + i * dtype_bytes(dt);
}
inline void* at(DType dt, void* base, int64_t i) {
  return static_cast<std::byte*>(base) + i * dtype_bytes(dt);
}

// n elements as fp32: in place, or widened into a scratch row.
inline const float* read_row(DType dt, const void* row, int64_t n, Scratch use) {
  if (dt == DType::kF32) return static_cast<const float*>(row);
  float* wide = scratch_floats(use, n);
  widen(static_cast<const bf16*>(row), n, wide);
  return wide;
}
inline float read_number(DType dt, const void* row, int64_t i) {
  if (dt == DType::kF32) return static_cast<const float*>(row)[i];
  return to_float(static_cast<const bf16*>(row)[i]);
}
// The place to compute n elements of an output row; write_row then rounds them into the row.
inline float* row_to_write(DType dt, void* row, int64_t n, Scratch use) {
  return dt == DType::kF32 ? static_cast<float*>(row) : scratch_floats(use, n);
}
inline void write_row(DType dt, const float* values, int64_t n, void* row) {
  if (dt == DType::kBF16) {
    round_to_bf16(values, n, static_cast<bf16*>(row));
  } else if (values != row) {
    std::memcpy(row, values, static_cast<size_t>(n) * sizeof(float));
  }
}
}  // namespace pagoda
