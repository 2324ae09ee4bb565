#include "kernels/working_memory.h"

#include <algorithm>

#include "base/bytes.h"
#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/products.h"
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

bool has_blocks(const KernelSizes& sizes) { return gradient_kernel(sizes.dtype) != nullptr; }

// Attention where there are no blocks, and in windows. Gradients of keys and values in fp32 are at
// most twice their packed operands.
ScratchNeed tiles_scratch(const KernelSizes& sizes, int64_t blocks) {
  const int64_t head = kPackedKinds * blocks * kAttentionBlock * align_up(sizes.head_dim, 64) *
                       dtype_bytes(sizes.dtype);
  const int64_t packed_heads = std::max(kPackedBudgetBytes, head);
  return {0, packed_heads, 2 * packed_heads, 0};
}

// The scratch of gemm.h in either type, of norms and of sums of rows. Every thread has a packed
// panel, its widened copy, sums of a tile, oneDNN's own scratch, and the scores of a token over its
// cached keys.
ScratchNeed rest_scratch(const KernelSizes& sizes) {
  const int64_t packed_input = align_up(sizes.input_dim, kGemmCols) * kRowBlock * kFloat;
  // A convolution has its taps beside the sums.
  const int64_t norm_sums = (div_ceil(sizes.tokens, kRowBlock) + 1) * sizes.row_dim * kFloat;
  const int64_t panel = kGemmDepth * kGemmCols * kFloat;
  return {kSlabLeftBytes, packed_input, std::max(kSlabSumsBytes, norm_sums),
          4 * panel + kRowBuffersBytes + (5 * sizes.row_dim + sizes.cached_scores) * kFloat};
}

}  // namespace

int64_t kernel_scratch_bytes(const KernelSizes& sizes, int threads) {
  const int64_t blocks = most_span_blocks(sizes.tokens, sizes.document_len);
  ScratchNeed all = rest_scratch(sizes);
  const auto add = [&all](const ScratchNeed& need) {
    all.left_bytes = std::max(all.left_bytes, need.left_bytes);
    all.packed_bytes = std::max(all.packed_bytes, need.packed_bytes);
    all.sums_bytes = std::max(all.sums_bytes, need.sums_bytes);
    all.thread_bytes += need.thread_bytes;
  };
  if (has_blocks(sizes)) {
    add(products_scratch(sizes.input_dim));
    add(attention_scratch(attention_kernel(DType::kBF16)->form, sizes.head_dim, blocks));
  }
  if (!has_blocks(sizes) || sizes.windows) add(tiles_scratch(sizes, blocks));
  return all.left_bytes + all.packed_bytes + all.sums_bytes + threads * all.thread_bytes;
}

int64_t kernel_working_bytes(const KernelSizes& sizes, int threads) {
  const int64_t row_sums = sizes.heads * sizes.tokens * kFloat;
  return kGeneratedBytes + row_sums + kernel_scratch_bytes(sizes, threads);
}

}  // namespace pagoda
