// The three products of a linear layer in bf16 by blocks (block_kernel.h):
//  - forward: rows of w are left operands, not packed if x has few rows; x is packed once and
//    shared by all threads;
//  - input gradient: dy is packed once; each thread packs the columns of w that it multiplies;
//  - weight gradient: both are packed once; a block of dw is written when it is complete, past the
//    cache where it begins at zero.
//
// Packed operands have the kernel's form: for a kernel that multiplies fp32, bf16 is widened.
//
// Weights are expected to be cold. They are read once for 256 rows, in long stretches of their own
// rows, which the processor's prefetchers follow. The forward also prefetches a panel of weights
// while the one before it is multiplied, unless there is only one block of rows. The input gradient
// does not: it takes a part of each of many rows, and prefetching those a slab ahead drives packed
// operands out of the L2 cache. Only the loop over panels of weights (and large packing) runs in
// parallel; each thread takes a stretch of neighbours.
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
#include "kernels/ops.h"

namespace pagoda {

// C (m, n) of c_dt = A (m, k) op(B) + bias, everything dense but B's row stride, A where its rows
// are read in place, and C where its rows are added to sums.
struct Product {
  DType dt;
  InputRows a;
  const void* b;  // (k, n), or (n, k) when transposed
  int64_t ldb;
  bool transposed;
  int64_t m, n, k;
  DType c_dt;
  OutputRows c;
  const void* bias = nullptr;  // (n) of dt, or none
};

// dw (out, in) = or += dy^T x over one block of at most kRowBlock rows.
struct WeightGradient {
  DType dt;
  InputRows dy;  // (rows, out)
  InputRows x;   // (rows, in)
  int64_t rows, in, out;
  float* dw;
  bool add;
};

// The kernel that computes a product of bf16; nullptr: gemm.h computes it. A table decides by the
// processor and the shape of the weights, not by the number of rows, on which a row must not
// depend.
const BlockKernel* product_kernel(const Product& p);
const BlockKernel* gradient_kernel(DType dt);

// "amx": the kernel that computes products by blocks, or "none". It decides only their speed.
std::string products_kernel();
// "bf16 by blocks of 32 ...": the order of sums, which decides the bits of results; the choice of
// kernel does not.
std::string products_build();

// An upper bound of the scratch of both products below, for any kernel and shape with inputs of at
// most `most_in` columns.
ScratchNeed products_scratch(int64_t most_in);

void multiply_blocks(const BlockKernel& kernel, const Product& p, ThreadPool& pool);
void add_gradient_blocks(const BlockKernel& kernel, const WeightGradient& g, ThreadPool& pool);

}  // namespace pagoda
