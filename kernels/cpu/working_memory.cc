#include "kernels/working_memory.h"

#include <algorithm>

#include "base/bytes.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/gemm.h"
#include "kernels/ops.h"

namespace pagoda {
namespace {

constexpr int64_t kFloat = 4;  // the widest element a kernel handles
// Code of a few dozen sizes of multiply (rows of a tile x columns x depth), some 64 KiB each.
constexpr int64_t kGeneratedBytes = 8 * kMiB;
// Largest slab of sums and of left operands that a multiply shares between threads (linear.cc).
constexpr int64_t kSlabSumsBytes = kSlabRows * kSlabCols * kFloat;
constexpr int64_t kSlabLeftBytes = kSlabCols * kRowBlock * kFloat;
constexpr int64_t kPackedKinds = 4;
constexpr int64_t kRowBuffersBytes = 1 * kMiB;  // small tiles and pieces of rows

// What every thread has: a packed panel, its widened copy, sums of a tile, oneDNN's own scratch;
// the scores of a token over its cached keys.
int64_t worker_bytes(const KernelSizes& sizes) {
  const int64_t panel = kGemmDepth * kGemmCols * kFloat;
  return 4 * panel + kRowBuffersBytes + (5 * sizes.row_dim + sizes.cached_scores) * kFloat;
}

// What the stream's thread has besides, shared by the workers of a loop.
int64_t shared_bytes(const KernelSizes& sizes) {
  const int64_t head = kPackedKinds * align_up(sizes.document_len, 128) *
                       align_up(sizes.head_dim, 64) * dtype_bytes(sizes.dtype);
  const int64_t packed_heads = std::max(kPackedBudgetBytes, head);
  const int64_t packed_input = align_up(sizes.input_dim, kGemmCols) * kRowBlock * kFloat;
  const int64_t norm_sums = div_ceil(sizes.tokens, kRowBlock) * sizes.row_dim * kFloat;
  // Gradients of keys and values in fp32 are at most twice their packed operands.
  const int64_t sums = std::max({kSlabSumsBytes, 2 * packed_heads, norm_sums});
  const int64_t row_sums = sizes.heads * sizes.tokens * kFloat;
  return std::max(packed_heads, packed_input) + sums + kSlabLeftBytes + row_sums;
}

}  // namespace

int64_t kernel_working_bytes(const KernelSizes& sizes, int threads) {
  return kGeneratedBytes + shared_bytes(sizes) + threads * worker_bytes(sizes);
}

}  // namespace pagoda
