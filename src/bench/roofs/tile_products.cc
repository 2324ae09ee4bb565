#include "bench/roofs/tile_products.h"

#include <algorithm>

#include "base/bytes.h"
#include "bench/race/noise.h"
#include "kernels/cpu/attention/attention_blocks.h"

namespace pagoda {
namespace {

constexpr int64_t kBlocks = 8;  // blocks of a document of 1024 tokens

int64_t packed_bytes(int64_t head_dim) {
  return std::max(gemm_packed_bytes(DType::kBF16, head_dim, kAttentionBlock),
                  gemm_packed_bytes(DType::kBF16, kAttentionBlock, head_dim));
}

int64_t depth_of(int64_t head_dim) { return div_ceil(head_dim, kBlock); }

}  // namespace

// What one thread multiplies.
struct TileProducts::Share {
  bf16* rows;          // rows of queries, keys and values: (kAttentionBlock, head_dim)
  bf16* weights;       // (kAttentionBlock, kAttentionBlock)
  float* scores;       // (kAttentionBlock, kAttentionBlock)
  float* sums;         // (kAttentionBlock, head_dim), or blocks of them
  std::byte* packed;   // kBlocks of keys, then kBlocks of values
  std::byte* queries;  // packed, for blocks

  static Share lay_out(std::byte* memory, int64_t head_dim, int64_t operand_bytes, int64_t* bytes) {
    int64_t used = 0;
    const auto take = [&](int64_t wanted) {
      std::byte* at = memory == nullptr ? nullptr : memory + used;
      used += align_up(wanted, 64);
      return at;
    };
    Share share;
    share.rows = reinterpret_cast<bf16*>(take(kAttentionBlock * head_dim * 2));
    share.weights = reinterpret_cast<bf16*>(take(kAttentionBlock * kAttentionBlock * 2));
    share.scores = reinterpret_cast<float*>(take(kAttentionBlock * kAttentionBlock * 4));
    share.sums =
        reinterpret_cast<float*>(take(kAttentionBlock * depth_of(head_dim) * kBlock * 4));
    share.packed = take(2 * kBlocks * operand_bytes);
    share.queries = take(operand_bytes);
    *bytes = align_up(used, kIoAlign);
    return share;
  }
};

int64_t TileProducts::operand_bytes() const {
  const BlockKernel* kernel = attention_kernel(DType::kBF16);
  return kernel != nullptr ? packed_head_bytes(kernel->form, depth_of(head_dim_))
                           : packed_bytes(head_dim_);
}

int64_t TileProducts::share_bytes() const {
  int64_t bytes = 0;
  Share::lay_out(nullptr, head_dim_, operand_bytes(), &bytes);
  return bytes;
}

TileProducts::Share TileProducts::share(int64_t thread) const {
  int64_t bytes = 0;
  return Share::lay_out(memory_.data() + thread * share_bytes(), head_dim_, operand_bytes(),
                        &bytes);
}

void TileProducts::pack(const Share& share) const {
  const int64_t slot = operand_bytes();
  const HeadTokens rows{share.rows, head_dim_, head_dim_};
  const AttentionBlock whole{0, kAttentionBlock, kAttentionBlock};
  const BlockKernel* kernel = attention_kernel(DType::kBF16);
  for (int64_t b = 0; b < kBlocks; ++b) {
    std::byte* keys = share.packed + b * slot;
    std::byte* values = keys + kBlocks * slot;
    if (kernel != nullptr) {
      pack_head(kKeyForm, HeadPacking::kLeftRows, rows, whole, keys);
      pack_head(kKeyForm, HeadPacking::kLeftColumns, rows, whole, values);
      pack_head(kernel->form, HeadPacking::kRightRows, rows, whole, share.queries);
    } else {
      gemm_pack(DType::kBF16, share.rows, head_dim_, true, head_dim_, kAttentionBlock, keys);
      gemm_pack(DType::kBF16, share.rows, head_dim_, false, kAttentionBlock, head_dim_, values);
    }
  }
}

Result<TileProducts> TileProducts::make(int64_t head_dim, Stream* stream) {
  TileProducts products(head_dim, stream);
  const int64_t threads = stream->pool().threads();
  ASSIGN_OR_RETURN(products.memory_, HostMemory::allocate(threads * products.share_bytes()));
  for (int64_t t = 0; t < threads; ++t) {
    const Share share = products.share(t);
    fill_values(share.rows, kAttentionBlock * head_dim);
    fill_values(share.weights, kAttentionBlock * kAttentionBlock);
    std::fill_n(share.sums, kAttentionBlock * depth_of(head_dim) * kBlock, 0.0f);
    products.pack(share);
  }
  return products;
}

void TileProducts::multiply_blocks(const Share& share, int64_t tiles) const {
  const BlockSession session(*attention_kernel(DType::kBF16));
  const int64_t depth = depth_of(head_dim_), slot = operand_bytes();
  const int64_t step = step_bytes(session.form()), key_step = step_bytes(kKeyForm);
  const auto* weights = reinterpret_cast<const std::byte*>(share.weights);
  for (int64_t i = 0; i < tiles * kTileBlocks; ++i) {
    const int64_t query = i % kTileBlocks, tile = i / kTileBlocks % kBlocks;
    const std::byte* keys = share.packed + tile * slot;
    const std::byte* values = keys + kBlocks * slot;
    for (int64_t key = 0; key < kTileBlocks; ++key) {
      multiply_steps(session, kKeyForm, keys + key * depth * key_step,
                     share.queries + query * depth * step, depth, share.scores + key * kBlockFloats,
                     false);
    }
    for (int64_t d = 0; d < depth; ++d) {
      multiply_steps(session, kKeyForm, values + d * kTileBlocks * key_step, weights, kTileBlocks,
                     share.sums + (query * depth + d) * kBlockFloats, tile > 0);
    }
  }
}

void TileProducts::multiply(const Share& share, int64_t tiles) const {
  const int64_t slot = operand_bytes();
  for (int64_t i = 0; i < tiles; ++i) {
    const std::byte* keys = share.packed + i % kBlocks * slot;
    const std::byte* values = keys + kBlocks * slot;
    for (int64_t row = 0; row < kAttentionBlock; row += kGemmRows) {
      gemm_multiply(DType::kBF16, kGemmRows, kAttentionBlock, head_dim_,
                    share.rows + row * head_dim_, keys, share.scores + row * kAttentionBlock,
                    false);
      gemm_multiply(DType::kBF16, kGemmRows, head_dim_, kAttentionBlock,
                    share.weights + row * kAttentionBlock, values, share.sums + row * head_dim_,
                    i % kBlocks > 0);
    }
  }
}

Timing TileProducts::run(int64_t operations) {
  const int64_t of_tile = 2 * 2 * kAttentionBlock * kAttentionBlock * head_dim_;
  const int64_t threads = stream_->pool().threads();
  const int64_t tiles = std::max<int64_t>(1, div_ceil(operations, of_tile * threads));
  const bool by_blocks = attention_kernel(DType::kBF16) != nullptr;
  const TimingClock timer;
  stream_->enqueue([&] {
    stream_->pool().parallel_for(threads, [&](int64_t t) {
      by_blocks ? multiply_blocks(share(t), tiles) : multiply(share(t), tiles);
    });
  });
  stream_->synchronize();
  return timer.finish(threads * tiles * of_tile);
}

AttentionOperations attention_operations(int64_t tokens, int64_t document_len, int64_t heads,
                                         int64_t head_dim) {
  const int64_t pairs = tokens * (document_len + 1) / 2;  // pairs of a query and a key that it sees
  const int64_t product = 2 * heads * head_dim * pairs;
  return {2 * product, 5 * product};
}

}  // namespace pagoda
