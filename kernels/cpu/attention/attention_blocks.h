// Attention in bf16 by blocks (block_kernel.h), and its gradient: the formulas of attention.cc and
// attention_backward.cc on products that keep to the caches, with tiles of 128 queries by 128 keys.
//
// Scores of the forward are keys by queries, so that softmax finds a query's values in one lane and
// the weights become a right operand without being transposed. The gradient computes the scores
// again and uses them for all three sums: dq belongs to the tile's queries; the rows of tiles add
// to dk and dv one after the other, in order, and each thread waits for its turn at a tile.
//
// Results do not depend on the kernel or the number of threads.
#pragma once

#include "kernels/cpu/attention/attention_tiles.h"
#include "kernels/cpu/products/block_kernel.h"
#include "kernels/cpu/rows/scratch.h"
#include "kernels/ops.h"

namespace pagoda {

struct AttentionTensors {
  AttentionShape shape;
  const bf16 *q, *k, *v;
  bf16* out;
  float* lse;
};

struct AttentionGradients {
  AttentionShape shape;
  const bf16 *q, *k, *v, *dout;
  const float *lse, *delta;  // (heads, tokens); delta: sums of dout * out
  bf16 *dq, *dk, *dv;
};

// The kernel that computes attention; nullptr: gemm.h computes it, as it does all windows.
const BlockKernel* attention_kernel(DType dt, const AttentionShape& shape = {});

void attend_by_blocks(const BlockKernel& kernel, const AttentionTensors& a,
                      const AttentionSpan& span, ThreadPool& pool);
void attend_backward_by_blocks(const BlockKernel& kernel, const AttentionGradients& a,
                               const AttentionSpan& span, ThreadPool& pool);

// An upper bound of the scratch of both for kernels of `form` and spans of up to `blocks` blocks:
// packed heads fill their budget.
ScratchNeed attention_scratch(StepForm form, int64_t head_dim, int64_t blocks);

// ---- shared by both ----

inline constexpr int64_t kTileBlocks = kAttentionBlock / kBlock;  // along a side of a tile

// Rows of one head.
struct HeadTokens {
  const bf16* base;
  int64_t stride, head_dim;
  int64_t depth() const { return div_ceil(head_dim, kBlock); }  // blocks along head_dim
};

// The kTileBlocks x depth operands of a tile's rows. Rows are left rows or right columns with depth
// along the head: [block][step]; or, turned, columns are left rows or right columns with depth
// along the rows: [block of columns][step].
enum class HeadPacking : uint8_t { kLeftRows, kRightRows, kLeftColumns, kRightColumns };
void pack_head(StepForm form, HeadPacking how, const HeadTokens& from, const AttentionBlock& block,
               std::byte* to);
inline int64_t packed_head_bytes(StepForm form, int64_t depth) {
  return kTileBlocks * depth * step_bytes(form);
}

// The form of keys and values in the forward, whatever the kernel's: every tile of queries reads
// all of them, and in the wide form they leave a core's cache earlier. On Zen 5 that costs 4 to 6 %
// of the forward over 1,024 tokens, and gains nothing over 256.
inline constexpr StepForm kKeyForm = StepForm::kPairs;

// The bytes of a head in a block of keys and values, packed for the forward; and packed for the
// gradient, with its sums.
inline int64_t key_block_bytes(int64_t depth) { return 2 * packed_head_bytes(kKeyForm, depth); }
inline int64_t key_gradient_block_bytes(StepForm form, int64_t depth) {
  return 3 * packed_head_bytes(form, depth);
}
inline int64_t key_sums_block_bytes(int64_t depth) {
  return 2 * kTileBlocks * depth * kBlockFloats * int64_t{sizeof(float)};
}

// sums (+)= left right over `steps` steps; right is packed in the kernel's form, left in `form`.
inline void multiply_steps(const BlockSession& session, StepForm form, const std::byte* left,
                           const std::byte* right, int64_t steps, float* sums, bool add) {
  BlockProduct product{};
  set_packed_left(product, form, left);
  product.right = right;
  product.right_form = session.form();
  product.steps = steps;
  product.sums = sums;
  product.add = add;
  session.multiply(product);
}

}  // namespace pagoda
