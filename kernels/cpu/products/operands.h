// Operands of block products: rows of bf16 copied into the order of block_kernel.h, in either form,
// and sums of blocks stored as rows. Single-threaded; no pointer needs more alignment than its type
// except packed operands and sums (64 bytes). Elements beyond the rows and columns are packed as
// zeros, and are neither read nor stored.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/products/block_kernel.h"

namespace pagoda {

// A part of a row-major bf16 matrix, of at most kBlock rows and, unless stated otherwise, kBlock
// columns.
struct BlockRows {
  const bf16* at;
  int64_t stride;  // elements
  int64_t rows, cols;
  // Where each row is, in which the block begins with element `col`; nullptr: rows lie `stride`
  // apart. Such rows are copied on their way, which is the copy that packing makes anyway.
  const void* const* each = nullptr;
  int64_t col = 0;

  const bf16* row(int64_t r) const {
    return (each != nullptr ? static_cast<const bf16*>(each[r]) : at + r * stride) + col;
  }
};

// Packs the steps of a left operand whose rows are m's rows (depth along any number of m's
// columns), or the step of one whose rows are m's columns (depth along m's rows).
void pack_left_rows(StepForm form, const BlockRows& m, std::byte* steps);
void pack_left_columns(StepForm form, const BlockRows& m, std::byte* step);
// Packs the step of a right operand whose columns are m's rows (depth along m's columns), or m's
// columns (depth along m's rows).
void pack_right_rows(StepForm form, const BlockRows& m, std::byte* step);
void pack_right_columns(StepForm form, const BlockRows& m, std::byte* step);

// Packs right columns of whole blocks side by side, `block_bytes` apart when packed: m's rows are
// read in pairs, each to its end, and prefetched a little ahead.
void pack_right_stretch(StepForm form, const BlockRows& m, int64_t block_bytes, std::byte* step);

// The place for the sums of a block: `rows` by `cols` elements of `dt`, with the row stride in
// elements.
struct BlockTarget {
  DType dt;
  void* at;
  int64_t stride;
  int64_t rows, cols;
  // Where the block's rows are added, rounded and scaled: to these fp32 rows, from element `col` on
  // (OutputRows). nullptr: they are stored.
  const void* const* sums = nullptr;
  const float* scale = nullptr;
  int64_t col = 0;

  // REQUIRES: sums.
  float* sum(int64_t r) const { return static_cast<float*>(const_cast<void*>(sums[r])) + col; }
  float scale_of(int64_t r) const { return scale == nullptr ? 1.0f : scale[r]; }
};

// target = round(sums + bias), or target += scale round(sums + bias). bias: kBlock floats, or
// nullptr. `transposed`: the block's columns are the target's rows.
void store_sums(const float* sums, bool transposed, const float* bias, const BlockTarget& target);
// target += sums, or target = sums. A sum of -0 counts as 0. fp32 targets.
void add_sums(const float* sums, bool add, const BlockTarget& target);

}  // namespace pagoda
