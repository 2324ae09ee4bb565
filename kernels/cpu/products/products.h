// The three products of a linear layer in bf16 by blocks (block_kernel.h):
//  - forward: rows of w are left operands, as they lie where rows of x are few; x is packed once
//    and shared by all threads;
//  - input gradient: dy is packed once; each thread packs the columns of w that it multiplies;
//  - weight gradient: both are packed once; a block of dw is written when it is complete, past the
//    cache where it begins at zero.
//
// What is packed has the kernel's form: a kernel that multiplies fp32 finds bf16 widened.
//
// Weights are expected to be cold. They are read once for 256 rows, far along their own rows, which
// the processor's prefetchers follow. Forward, a panel of them is also asked for while the one
// before it is multiplied, unless one block of rows is all there is to multiply. Not so for the
// input gradient: a share of each of many rows, asked for a slab ahead, drives what is packed out
// of the L2 cache. A loop over panels of weights is the only work in parallel (and packing, where
// it is large), each thread taking a stretch of neighbours.
//
// An element of a result is the sum of one row and one column in the kernel's order (BlockSum),
// whatever the other rows are and how many threads ran.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "device/device.h"
#include "kernels/cpu/products/block_kernel.h"
#include "kernels/cpu/rows/scratch.h"

namespace pagoda {

// C (m, n) of c_dt = A (m, k) op(B) + bias, everything dense but B's row stride.
struct Product {
  DType dt;
  const void* a;
  const void* b;  // (k, n), or (n, k) when transposed
  int64_t ldb;
  bool transposed;
  int64_t m, n, k;
  DType c_dt;
  void* c;
  const void* bias = nullptr;  // (n) of dt, or none
};

// dw (out, in) = or += dy^T x over one block of at most kRowBlock rows.
struct WeightGradient {
  DType dt;
  const void* dy;  // (rows, out)
  const void* x;   // (rows, in)
  int64_t rows, in, out;
  float* dw;
  bool add;
};

// The kernel that a product of bf16 is computed with; nullptr: by gemm.h. A table of shapes and of
// what the processor has: weights' shapes only, since a row must not depend on how many there are.
const BlockKernel* product_kernel(const Product& p);
const BlockKernel* gradient_kernel(DType dt);

// "amx": the kernel that products by blocks are computed with, or "none". It decides of their speed
// alone.
std::string products_kernel();
// "bf16 by blocks of 32 ...": what this decides of the bits of results, which is the order of sums
// and not the kernel.
std::string products_build();

// Of both products below, whatever the kernel and the shape, for inputs of at most `most_in`
// columns. An upper bound.
ScratchNeed products_scratch(int64_t most_in);

void multiply_blocks(const BlockKernel& kernel, const Product& p, ThreadPool& pool);
void add_gradient_blocks(const BlockKernel& kernel, const WeightGradient& g, ThreadPool& pool);

}  // namespace pagoda
