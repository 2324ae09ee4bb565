#include "bench/tile_products.h"

#include <algorithm>

#include "base/bytes.h"
#include "bench/noise.h"
#include "kernels/cpu/attention_tiles.h"

namespace pagoda {
namespace {

constexpr int64_t kBlocks = 8;  // of a document of 1024 tokens

int64_t packed_bytes(int64_t head_dim) {
  return std::max(gemm_packed_bytes(DType::kBF16, head_dim, kAttentionBlock),
                  gemm_packed_bytes(DType::kBF16, kAttentionBlock, head_dim));
}

}  // namespace

// What one thread multiplies.
struct TileProducts::Share {
  bf16* rows;        // of keys and of values, to be packed: (kAttentionBlock, head_dim)
  bf16* queries;     // (kGemmRows, head_dim)
  bf16* weights;     // (kGemmRows, kAttentionBlock)
  float* scores;     // (kGemmRows, kAttentionBlock)
  float* sums;       // (kGemmRows, head_dim)
  std::byte* packed;  // kBlocks of keys, then kBlocks of values

  static Share carve(std::byte* memory, int64_t head_dim, int64_t* bytes) {
    int64_t used = 0;
    const auto take = [&](int64_t wanted) {
      std::byte* at = memory == nullptr ? nullptr : memory + used;
      used += align_up(wanted, 64);
      return at;
    };
    Share share;
    share.rows = reinterpret_cast<bf16*>(take(kAttentionBlock * head_dim * 2));
    share.queries = reinterpret_cast<bf16*>(take(kGemmRows * head_dim * 2));
    share.weights = reinterpret_cast<bf16*>(take(kGemmRows * kAttentionBlock * 2));
    share.scores = reinterpret_cast<float*>(take(kGemmRows * kAttentionBlock * 4));
    share.sums = reinterpret_cast<float*>(take(kGemmRows * head_dim * 4));
    share.packed = take(2 * kBlocks * packed_bytes(head_dim));
    *bytes = align_up(used, kIoAlign);
    return share;
  }
};

int64_t TileProducts::share_bytes() const {
  int64_t bytes = 0;
  Share::carve(nullptr, head_dim_, &bytes);
  return bytes;
}

TileProducts::Share TileProducts::share(int64_t thread) const {
  int64_t bytes = 0;
  return Share::carve(memory_.data() + thread * share_bytes(), head_dim_, &bytes);
}

Result<TileProducts> TileProducts::make(int64_t head_dim, ThreadPool* pool) {
  TileProducts products(head_dim, pool);
  ASSIGN_OR_RETURN(products.memory_,
                   HostMemory::allocate(pool->threads() * products.share_bytes()));
  const int64_t slot = packed_bytes(head_dim);
  for (int64_t t = 0; t < pool->threads(); ++t) {
    const Share share = products.share(t);
    fill_values(share.rows, kAttentionBlock * head_dim);
    fill_values(share.queries, kGemmRows * head_dim);
    fill_values(share.weights, kGemmRows * kAttentionBlock);
    std::fill_n(share.sums, kGemmRows * head_dim, 0.0f);
    for (int64_t b = 0; b < kBlocks; ++b) {
      gemm_pack(DType::kBF16, share.rows, head_dim, true, head_dim, kAttentionBlock,
                share.packed + b * slot);
      gemm_pack(DType::kBF16, share.rows, head_dim, false, kAttentionBlock, head_dim,
                share.packed + (kBlocks + b) * slot);
    }
  }
  return products;
}

void TileProducts::multiply(const Share& share, int64_t pairs) const {
  const int64_t slot = packed_bytes(head_dim_);
  for (int64_t i = 0; i < pairs; ++i) {
    const std::byte* keys = share.packed + i % kBlocks * slot;
    const std::byte* values = keys + kBlocks * slot;
    gemm_multiply(DType::kBF16, kGemmRows, kAttentionBlock, head_dim_, share.queries, keys,
                  share.scores, false);
    gemm_multiply(DType::kBF16, kGemmRows, head_dim_, kAttentionBlock, share.weights, values,
                  share.sums, i % kBlocks > 0);
  }
}

Leg TileProducts::run(int64_t operations) {
  const int64_t of_pair = 2 * 2 * kGemmRows * kAttentionBlock * head_dim_;
  const int64_t threads = pool_->threads();
  const int64_t pairs = std::max<int64_t>(1, div_ceil(operations, of_pair * threads));
  const LegTimer timer;
  pool_->parallel_for(threads, [&](int64_t t) { multiply(share(t), pairs); });
  return timer.finish(threads * pairs * of_pair);
}

AttentionOperations attention_operations(int64_t tokens, int64_t document_len, int64_t heads,
                                         int64_t head_dim) {
  const int64_t pairs = tokens * (document_len + 1) / 2;  // of a query and a key it sees
  const int64_t product = 2 * heads * head_dim * pairs;
  return {2 * product, 5 * product};
}

}  // namespace pagoda
