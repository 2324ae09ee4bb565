// The matrix product of the CPU kernels, except for products by blocks (products.h).
// Single-threaded: C (m, n) = A (m, k) B (k, n), sums in fp32. B is packed first, in whatever order
// the implementation likes, and then multiplied with A 64 rows at a time. Two implementations, one
// is linked: gemm_onednn.cc and gemm_loop.cc.
//
// What callers rely on:
//  - a row of C depends on its row of A and on B, not on m and not on what the other rows hold;
//  - no pointer needs more alignment than its element type, except `packed`;
//  - any thread may call, a packed B may be read by several threads at once; nothing here spawns
//    threads or keeps state that changes results.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"

namespace pagoda {

inline constexpr int64_t kGemmRows = 64;     // most rows of one gemm_multiply
inline constexpr int64_t kGemmCols = 128;    // most columns of a packed B
inline constexpr int64_t kGemmDepth = 2048;  // most k of a packed B: it stays in the L2 cache

// Products deeper than kGemmDepth are computed a slab of rows at a time, so that the sums kept
// between depth panels stay small.
inline constexpr int64_t kSlabRows = 512;
inline constexpr int64_t kSlabCols = 4096;

// Room a packed B needs, a multiple of 64; the memory must be 64-byte aligned.
int64_t gemm_packed_bytes(DType dt, int64_t k, int64_t n);

// Packs B (k, n), row stride ldb; or, `transposed`, B given as (n, k) with row stride ldb.
void gemm_pack(DType dt, const void* b, int64_t ldb, bool transposed, int64_t k, int64_t n,
               void* packed);

// C = A B, or C += A B. 1 <= m <= kGemmRows. A (kGemmRows, k) dense of dt; rows from m on must be
// readable and are ignored. C (kGemmRows, n) dense fp32; rows from m on may be overwritten.
void gemm_multiply(DType dt, int64_t m, int64_t n, int64_t k, const void* a, const void* packed,
                   float* c, bool accumulate);

// The library, its version and the processor features it uses, on which the bits of sums depend.
std::string gemm_build();
// The same as one word of a kernel set's name: "oneDNN-2.6.3-0x27".
std::string gemm_name();

}  // namespace pagoda
