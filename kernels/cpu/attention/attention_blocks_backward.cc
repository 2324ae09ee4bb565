// With p and ds of a tile as score_blocks.h makes them:
//   dv^T += dout^T p     dk^T += q^T ds     dq += ds k
#include <atomic>
#include <cmath>
#include <memory>
#include <numbers>

#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/attention/score_blocks.h"
#include "kernels/cpu/products/operands.h"

namespace pagoda {
namespace {

// Lets threads add to the sums of a tile of keys in the order of their numbers. They share only the
// counter; a thread writes the sums before it passes its turn on. The counter has 32 bits, on which
// Linux itself can wait, and a cache line of its own.
class alignas(64) Turns {
 public:
  void await(int32_t number) const {
    for (int32_t now = next_.load(std::memory_order_acquire); now != number;
         now = next_.load(std::memory_order_acquire)) {
      next_.wait(now, std::memory_order_acquire);
    }
  }
  void pass(int32_t number) {
    next_.store(number + 1, std::memory_order_release);
    next_.notify_all();
  }

 private:
  std::atomic<int32_t> next_{0};
};

// A tile of keys and values: packed operands, and the sums of its gradients.
struct KeyTile {
  const std::byte* keys;          // right rows
  const std::byte* values;        // right rows
  const std::byte* keys_by_depth;  // right columns
  float *dk, *dv;                 // transposed: [block of head_dim][block of keys]
  Turns* turns;
};

// Adds the gradients that one head's queries of a tile give.
class QueryGradientTile {
 public:
  QueryGradientTile(const BlockSession& session, const AttentionGradients& a, int64_t head,
                    const AttentionBlock& block)
      : session_(session),
        a_(a),
        head_(head),
        block_(block),
        query_blocks_(block.padded / kBlock),
        depth_(div_ceil(a.shape.head_dim, kBlock)),
        step_(step_bytes(session.form())),
        part_(packed_head_bytes(session.form(), depth_)),
        queries_(scratch_bytes(Scratch::kRowA, 4 * part_)),
        weights_(scratch_bytes(Scratch::kRowB, 3 * tile_weights())),
        dq_(scratch_floats(Scratch::kRowC, kTileBlocks * depth_ * kBlockFloats)) {
    const AttentionShape& shape = a.shape;
    const HeadTokens q{a.q + head * shape.head_dim, shape.qkv_stride, shape.head_dim};
    const HeadTokens dout{a.dout + head * shape.head_dim, shape.heads * shape.head_dim,
                          shape.head_dim};
    const StepForm form = session.form();
    pack_head(form, HeadPacking::kLeftRows, q, block, queries_);
    pack_head(form, HeadPacking::kLeftRows, dout, block, queries_ + part_);
    pack_head(form, HeadPacking::kLeftColumns, q, block, queries_ + 2 * part_);
    pack_head(form, HeadPacking::kLeftColumns, dout, block, queries_ + 3 * part_);
    copy_rows();
  }

  // `first`: this is the first tile of keys that the queries see. `number`: the turn to add to dk
  // and dv.
  void add_keys(const KeyTile& tile, bool first, bool diagonal, int32_t number) {
    find_weights(tile, diagonal);
    tile.turns->await(number);
    add_key_gradients(tile, diagonal, number > 0);
    tile.turns->pass(number);
    for (int64_t i = 0; i < query_blocks_; ++i) {
      const int64_t steps = diagonal ? i + 1 : kTileBlocks;
      for (int64_t d = 0; d < depth_; ++d) {
        multiply_steps(session_, session_.form(), gradient_rows(i, 0),
                       tile.keys_by_depth + d * kTileBlocks * step_, steps,
                       dq_ + (i * depth_ + d) * kBlockFloats, !first);
      }
    }
  }

  void store() {
    const AttentionShape& shape = a_.shape;
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
    scale_row(dq_, query_blocks_ * depth_ * kBlockFloats, scale, dq_);
    for (int64_t i = 0; i < query_blocks_; ++i) {
      const int64_t row = i * kBlock;
      for (int64_t d = 0; d < depth_; ++d) {
        bf16* dq = a_.dq + (block_.row + row) * shape.qkv_stride + head_ * shape.head_dim +
                   d * kBlock;
        store_sums(dq_ + (i * depth_ + d) * kBlockFloats, false, nullptr,
                   {DType::kBF16, dq, shape.qkv_stride, std::min(kBlock, block_.rows - row),
                    std::min(kBlock, shape.head_dim - d * kBlock)});
      }
    }
  }

 private:
  // The bytes of a tile's weights, packed.
  int64_t tile_weights() const { return kTileBlocks * kTileBlocks * step_; }

  // lse as exponents of 2, and delta; zeros for queries there are not: they add nothing, since
  // their rows of q and dout are zeros.
  void copy_rows() {
    std::fill_n(lse_, kAttentionBlock, 0.0f);
    std::fill_n(delta_, kAttentionBlock, 0.0f);
    const int64_t first = head_ * a_.shape.tokens + block_.row;
    scale_row(a_.lse + first, block_.rows, static_cast<float>(std::numbers::log2e), lse_);
    std::copy_n(a_.delta + first, block_.rows, delta_);
  }

  // The operands of a block of queries i and a block of keys j.
  std::byte* weights(int64_t i, int64_t j) const {
    return weights_ + (j * kTileBlocks + i) * step_;
  }
  std::byte* gradients(int64_t i, int64_t j) const { return weights(i, j) + tile_weights(); }
  std::byte* gradient_rows(int64_t i, int64_t j) const {
    return weights_ + 2 * tile_weights() + (i * kTileBlocks + j) * step_;
  }

  void find_weights(const KeyTile& tile, bool diagonal) {
    const float scale = static_cast<float>(
        std::numbers::log2e / std::sqrt(static_cast<double>(a_.shape.head_dim)));
    alignas(64) float scores[kBlockFloats], dp[kBlockFloats];
    const int64_t of_block = depth_ * step_;
    for (int64_t i = 0; i < query_blocks_; ++i) {
      for (int64_t j = 0; j < (diagonal ? i + 1 : kTileBlocks); ++j) {
        multiply_steps(session_, session_.form(), queries_ + i * of_block, tile.keys + j * of_block,
                       depth_, scores, false);
        multiply_steps(session_, session_.form(), queries_ + part_ + i * of_block,
                       tile.values + j * of_block, depth_, dp, false);
        find_score_gradient({scores, dp, scale, lse_ + i * kBlock, delta_ + i * kBlock,
                             diagonal && i == j, session_.form(), weights(i, j), gradients(i, j),
                             gradient_rows(i, j)});
      }
    }
  }

  void add_key_gradients(const KeyTile& tile, bool diagonal, bool add) {
    for (int64_t j = 0; j < (diagonal ? query_blocks_ : kTileBlocks); ++j) {
      const int64_t i = diagonal ? j : 0;  // the first block of queries that sees them
      for (int64_t d = 0; d < depth_; ++d) {
        const int64_t at = (d * kTileBlocks + j) * kBlockFloats;
        const std::byte* q = queries_ + 2 * part_ + (d * kTileBlocks + i) * step_;
        multiply_steps(session_, session_.form(), q + part_, weights(i, j), query_blocks_ - i,
                       tile.dv + at, add);
        multiply_steps(session_, session_.form(), q, gradients(i, j), query_blocks_ - i,
                       tile.dk + at, add);
      }
    }
  }

  const BlockSession& session_;
  const AttentionGradients& a_;
  const int64_t head_;
  const AttentionBlock& block_;
  const int64_t query_blocks_, depth_, step_, part_;
  std::byte* queries_;  // left rows of q, of dout; left columns of q, of dout
  std::byte* weights_;  // p, ds, rows of ds
  float* dq_;           // [block of queries][block of head_dim]
  alignas(64) float lse_[kAttentionBlock];
  alignas(64) float delta_[kAttentionBlock];
};

// Some heads of keys and values over a span.
class KeyHeads {
 public:
  KeyHeads(StepForm form, const AttentionGradients& a, const AttentionSpan& span, int64_t first,
           int64_t count)
      : form_(form),
        a_(a),
        span_(span),
        first_(first),
        count_(count),
        blocks_(std::ssize(span.blocks)),
        depth_(div_ceil(a.shape.head_dim, kBlock)),
        part_(packed_head_bytes(form, depth_)),
        packed_(scratch_bytes(Scratch::kSharedPacked,
                              count * blocks_ * key_gradient_block_bytes(form, depth_))),
        sums_(scratch_floats(Scratch::kSharedSums, count * blocks_ * 2 * sums_of_tile())),
        turns_(std::make_unique<Turns[]>(static_cast<size_t>(count * blocks_))) {}

  void pack(ThreadPool& pool) const {
    pool.parallel_for(blocks_ * count_, [&](int64_t i) {
      const int64_t slot = i % count_, b = i / count_;
      const AttentionBlock& block = span_.blocks[static_cast<size_t>(b)];
      std::byte* to = packed(slot, b);
      pack_head(form_, HeadPacking::kRightRows, rows(a_.k, slot), block, to);
      pack_head(form_, HeadPacking::kRightRows, rows(a_.v, slot), block, to + part_);
      pack_head(form_, HeadPacking::kRightColumns, rows(a_.k, slot), block, to + 2 * part_);
    });
  }

  // Adds query heads one after the other. Threads take whole documents if their parts are then
  // equal, so that sums stay in a core's cache. Otherwise they go tile by tile; a turn waits for a
  // smaller i, which its thread comes to earlier, so some thread can always go on.
  void add_queries(const BlockKernel& kernel, ThreadPool& pool) const {
    const int64_t group = a_.shape.heads / a_.shape.kv_heads;
    const std::vector<int64_t> documents = first_blocks();
    if (even(documents, pool.threads())) {
      pool.parallel_for(std::ssize(documents) * count_, [&](int64_t i) {
        const BlockSession session(kernel);
        const int64_t first = documents[static_cast<size_t>(i / count_)];
        const int64_t end = span_.blocks[static_cast<size_t>(first)].end;
        for (int64_t member = 0; member < group; ++member) {
          for (int64_t b = first; b < end; ++b) add_tile(session, i % count_, member, b);
        }
      });
      return;
    }
    pool.parallel_for(group * blocks_ * count_, [&](int64_t i) {
      const BlockSession session(kernel);
      add_tile(session, i % count_, i / count_ / blocks_, i / count_ % blocks_);
    });
  }

  void store(ThreadPool& pool) const {
    const float scale =
        static_cast<float>(1.0 / std::sqrt(static_cast<double>(a_.shape.head_dim)));
    pool.parallel_for(blocks_ * count_, [&](int64_t i) {
      const int64_t slot = i % count_, b = i / count_;
      const KeyTile tile = key_tile(slot, b);
      scale_row(tile.dk, sums_of_tile(), scale, tile.dk);
      store_tile(tile.dk, b, a_.dk + (first_ + slot) * a_.shape.head_dim);
      store_tile(tile.dv, b, a_.dv + (first_ + slot) * a_.shape.head_dim);
    });
  }

 private:
  std::vector<int64_t> first_blocks() const {
    std::vector<int64_t> first;
    for (int64_t b = 0; b < blocks_; b = span_.blocks[static_cast<size_t>(b)].end) {
      first.push_back(b);
    }
    return first;
  }
  // Whether threads that take whole documents in turn have about the same number of tiles.
  bool even(const std::vector<int64_t>& documents, int64_t threads) const {
    std::vector<int64_t> tiles(static_cast<size_t>(threads), 0);
    int64_t all = 0;
    for (int64_t i = 0; i < std::ssize(documents) * count_; ++i) {
      const int64_t first = documents[static_cast<size_t>(i / count_)];
      const int64_t side = span_.blocks[static_cast<size_t>(first)].end - first;
      tiles[static_cast<size_t>(i % threads)] += side * (side + 1) / 2;
      all += side * (side + 1) / 2;
    }
    return 8 * threads * *std::max_element(tiles.begin(), tiles.end()) <= 9 * all;
  }
  // The queries of block b of one of the slot's query heads.
  void add_tile(const BlockSession& session, int64_t slot, int64_t member, int64_t b) const {
    const AttentionBlock& block = span_.blocks[static_cast<size_t>(b)];
    const int64_t group = a_.shape.heads / a_.shape.kv_heads;
    QueryGradientTile tile(session, a_, (first_ + slot) * group + member, block);
    for (int64_t j = block.first; j <= b; ++j) {
      tile.add_keys(key_tile(slot, j), j == block.first, j == b,
                    narrow<int32_t>(member * (block.end - j) + b - j));
    }
    tile.store();
  }
  HeadTokens rows(const bf16* base, int64_t slot) const {
    return {base + (first_ + slot) * a_.shape.head_dim, a_.shape.qkv_stride, a_.shape.head_dim};
  }
  int64_t sums_of_tile() const { return kTileBlocks * depth_ * kBlockFloats; }
  std::byte* packed(int64_t slot, int64_t b) const {
    return packed_ + (slot * blocks_ + b) * key_gradient_block_bytes(form_, depth_);
  }
  KeyTile key_tile(int64_t slot, int64_t b) const {
    const std::byte* keys = packed(slot, b);
    float* dk = sums_ + (slot * blocks_ + b) * 2 * sums_of_tile();
    return {keys, keys + part_, keys + 2 * part_, dk, dk + sums_of_tile(),
            &turns_[static_cast<size_t>(slot * blocks_ + b)]};
  }
  void store_tile(const float* sums, int64_t b, bf16* head) const {
    const AttentionBlock& block = span_.blocks[static_cast<size_t>(b)];
    const AttentionShape& shape = a_.shape;
    for (int64_t j = 0; j < block.padded / kBlock; ++j) {
      for (int64_t d = 0; d < depth_; ++d) {
        const int64_t row = j * kBlock;
        store_sums(sums + (d * kTileBlocks + j) * kBlockFloats, true, nullptr,
                   {DType::kBF16, head + (block.row + row) * shape.qkv_stride + d * kBlock,
                    shape.qkv_stride, std::min(kBlock, block.rows - row),
                    std::min(kBlock, shape.head_dim - d * kBlock)});
      }
    }
  }

  const StepForm form_;
  const AttentionGradients& a_;
  const AttentionSpan& span_;
  const int64_t first_, count_, blocks_, depth_, part_;
  std::byte* packed_;
  float* sums_;
  std::unique_ptr<Turns[]> turns_;
};

}  // namespace

void attend_backward_by_blocks(const BlockKernel& kernel, const AttentionGradients& a,
                               const AttentionSpan& span, ThreadPool& pool) {
  const int64_t kv_heads = a.shape.kv_heads;
  const int64_t depth = div_ceil(a.shape.head_dim, kBlock);
  const int64_t head_bytes =
      (key_gradient_block_bytes(kernel.form, depth) + key_sums_block_bytes(depth)) *
      std::ssize(span.blocks);
  const int64_t at_once = std::clamp<int64_t>(kPackedBudgetBytes / head_bytes, 1, kv_heads);
  for (int64_t first = 0; first < kv_heads; first += at_once) {
    const KeyHeads heads(kernel.form, a, span, first, std::min(at_once, kv_heads - first));
    heads.pack(pool);
    heads.add_queries(kernel, pool);
    heads.store(pool);
  }
}

}  // namespace pagoda
