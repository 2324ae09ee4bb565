#include "kernels/cpu/attention/attention_blocks.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/attention/score_blocks.h"
#include "kernels/cpu/products/operands.h"

namespace pagoda {
namespace {

HeadTokens tokens_of(const AttentionShape& shape, const bf16* base, int64_t head) {
  return {base + head * shape.head_dim, shape.qkv_stride, shape.head_dim};
}

// The state of one thread while it attends to a tile's queries.
class QueryTile {
 public:
  QueryTile(const BlockSession& session, const AttentionTensors& a, int64_t head,
            const AttentionBlock& block)
      : session_(session),
        a_(a),
        head_(head),
        block_(block),
        depth_(div_ceil(a.shape.head_dim, kBlock)),
        step_(step_bytes(session.form())),
        scale_(static_cast<float>(std::numbers::log2e /
                                  std::sqrt(static_cast<double>(a.shape.head_dim)))),
        queries_(scratch_bytes(Scratch::kRowA, packed_head_bytes(session.form(), depth_))),
        scores_(scratch_floats(Scratch::kRowB, kTileBlocks * kBlockFloats)),
        weights_(scratch_bytes(Scratch::kRowC, kTileBlocks * step_)),
        sums_(scratch_floats(Scratch::kRowD, kTileBlocks * depth_ * kBlockFloats)) {
    pack_head(session.form(), HeadPacking::kRightRows, tokens_of(a.shape, a.q, head), block,
              queries_);
    float highest = -std::numeric_limits<float>::infinity(), sum = 0.0f;
    if (a.shape.sinks != nullptr) {  // it is there before any key
      highest = to_float(static_cast<const bf16*>(a.shape.sinks)[head]) *
                static_cast<float>(std::numbers::log2e);
      sum = 1.0f;
    }
    for (SoftmaxColumns& columns : state_) {
      std::fill_n(columns.highest, kBlock, highest);
      std::fill_n(columns.sum, kBlock, sum);
    }
  }

  // Adds a tile of keys; `diagonal`: it is the queries' own tile.
  void add_keys(const std::byte* keys, const std::byte* values, bool first, bool diagonal) {
    for (int64_t i = 0; i < block_.padded / kBlock; ++i) {
      const int64_t count = diagonal ? i + 1 : kTileBlocks;
      for (int64_t j = 0; j < count; ++j) {
        multiply_steps(session_, kKeyForm, keys + j * depth_ * step_bytes(kKeyForm),
                       queries_ + i * depth_ * step_, depth_, scores_ + j * kBlockFloats, false);
      }
      alignas(64) float shrink[kBlock];
      float* sums = sums_ + i * depth_ * kBlockFloats;
      const bool shrinks = softmax_columns(scores_, count, diagonal, scale_, state_[i], shrink,
                                           session_.form(), weights_);
      if (shrinks && !first) scale_columns(sums, depth_, shrink);
      for (int64_t d = 0; d < depth_; ++d) {
        multiply_steps(session_, kKeyForm, values + d * kTileBlocks * step_bytes(kKeyForm),
                       weights_, count, sums + d * kBlockFloats, !first);
      }
    }
  }

  void store() {
    const AttentionShape& shape = a_.shape;
    for (int64_t i = 0; i < block_.padded / kBlock; ++i) {
      const SoftmaxColumns& columns = state_[i];
      const int64_t row = block_.row + i * kBlock;
      const int64_t rows = std::min(kBlock, block_.row + block_.rows - row);
      alignas(64) float inverse[kBlock];
      for (int64_t c = 0; c < kBlock; ++c) inverse[c] = 1.0f / columns.sum[c];
      float* lse = a_.lse + head_ * shape.tokens + row;
      for (int64_t c = 0; c < rows; ++c) {
        lse[c] = static_cast<float>(columns.highest[c] * std::numbers::ln2 +
                                    std::log(static_cast<double>(columns.sum[c])));
      }
      float* sums = sums_ + i * depth_ * kBlockFloats;
      scale_columns(sums, depth_, inverse);
      for (int64_t d = 0; d < depth_; ++d) {
        const int64_t width = shape.heads * shape.head_dim;
        bf16* out = a_.out + row * width + head_ * shape.head_dim + d * kBlock;
        store_sums(sums + d * kBlockFloats, true, nullptr,
                   {DType::kBF16, out, width, rows, std::min(kBlock, shape.head_dim - d * kBlock)});
      }
    }
  }

 private:
  const BlockSession& session_;
  const AttentionTensors& a_;
  const int64_t head_;
  const AttentionBlock& block_;
  const int64_t depth_, step_;  // blocks of head_dim; bytes of a step
  const float scale_;
  std::byte* queries_;
  float* scores_;
  std::byte* weights_;
  float* sums_;  // out^T, [block of queries][block of head_dim]
  SoftmaxColumns state_[kTileBlocks];
};

}  // namespace

const BlockKernel* attention_kernel(DType dt, const AttentionShape& shape) {
  if (dt != DType::kBF16 || shape.window > 0 || block_kernels().empty()) return nullptr;
  return block_kernels().front();
}

void pack_head(StepForm form, HeadPacking how, const HeadTokens& from, const AttentionBlock& block,
               std::byte* to) {
  const int64_t depth = from.depth(), step = step_bytes(form);
  for (int64_t i = 0; i < block.padded / kBlock; ++i) {
    const int64_t row = i * kBlock, rows = std::min(kBlock, block.rows - row);
    const bf16* first = from.base + (block.row + row) * from.stride;
    if (how == HeadPacking::kLeftRows) {
      pack_left_rows(form, {first, from.stride, rows, from.head_dim}, to + i * depth * step);
      continue;
    }
    for (int64_t d = 0; d < depth; ++d) {
      const BlockRows part{first + d * kBlock, from.stride, rows,
                           std::min(kBlock, from.head_dim - d * kBlock)};
      if (how == HeadPacking::kRightRows) {
        pack_right_rows(form, part, to + (i * depth + d) * step);
      } else if (how == HeadPacking::kLeftColumns) {
        pack_left_columns(form, part, to + (d * kTileBlocks + i) * step);
      } else {
        pack_right_columns(form, part, to + (d * kTileBlocks + i) * step);
      }
    }
  }
}

ScratchNeed attention_scratch(StepForm form, int64_t head_dim, int64_t blocks) {
  const int64_t depth = div_ceil(head_dim, kBlock), part = packed_head_bytes(form, depth);
  const int64_t packed = key_gradient_block_bytes(form, depth), sums = key_sums_block_bytes(depth);
  const auto heads = [&](int64_t block) {
    return std::max(kPackedBudgetBytes / (block * blocks), int64_t{1}) * blocks;
  };
  const int64_t gradient_heads = heads(packed + sums), step = step_bytes(form);
  // Queries and dout in either order, weights and gradients of a tile, dq.
  const int64_t backward = 4 * part + 3 * kTileBlocks * kTileBlocks * step + sums / 2;
  const int64_t forward = part + sums / 2 + kTileBlocks * (kBlockFloats * 4 + step);
  const int64_t key_bytes = key_block_bytes(depth);
  return {0, std::max(heads(key_bytes) * key_bytes, gradient_heads * packed),
          gradient_heads * sums, forward + backward};
}

void attend_by_blocks(const BlockKernel& kernel, const AttentionTensors& a,
                      const AttentionSpan& span, ThreadPool& pool) {
  const AttentionShape& shape = a.shape;
  const auto blocks = static_cast<int64_t>(span.blocks.size());
  const int64_t depth = div_ceil(shape.head_dim, kBlock);
  const int64_t part = packed_head_bytes(kKeyForm, depth), head_bytes = key_block_bytes(depth);
  const int64_t at_once =
      std::clamp<int64_t>(kPackedBudgetBytes / (blocks * head_bytes), 1, shape.kv_heads);
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t first = 0; first < shape.kv_heads; first += at_once) {
    const int64_t count = std::min(at_once, shape.kv_heads - first);
    std::byte* packed = scratch_bytes(Scratch::kSharedPacked, count * blocks * head_bytes);
    const auto keys = [&](int64_t slot, int64_t b) {
      return packed + (slot * blocks + b) * head_bytes;
    };
    pool.parallel_for(blocks * count, [&](int64_t i) {
      const int64_t slot = i % count, b = i / count;
      const AttentionBlock& block = span.blocks[static_cast<size_t>(b)];
      std::byte* at = keys(slot, b);
      pack_head(kKeyForm, HeadPacking::kLeftRows, tokens_of(shape, a.k, first + slot), block, at);
      pack_head(kKeyForm, HeadPacking::kLeftColumns, tokens_of(shape, a.v, first + slot), block,
                at + part);
    });
    const int64_t heads = count * group;
    pool.parallel_for(blocks * heads, [&](int64_t i) {
      const BlockSession session(kernel);
      const int64_t head = i % heads, b = i / heads;
      const AttentionBlock& block = span.blocks[static_cast<size_t>(b)];
      QueryTile tile(session, a, first * group + head, block);
      for (int64_t j = block.first; j <= b; ++j) {
        const std::byte* at = keys(head / group, j);
        tile.add_keys(at, at + part, j == block.first, j == b);
      }
      tile.store();
    });
  }
}

}  // namespace pagoda
