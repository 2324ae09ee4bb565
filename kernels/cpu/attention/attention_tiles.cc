#include "kernels/cpu/attention/attention_tiles.h"

namespace pagoda {
namespace {

constexpr int64_t kSpanBlocks = 64;

void add_document(int64_t begin, int64_t end, AttentionSpan& span) {
  const auto first_block = static_cast<int64_t>(span.blocks.size());
  const int64_t end_block = first_block + div_ceil(end - begin, kAttentionBlock);
  for (int64_t row = begin; row < end; row += kAttentionBlock) {
    const int64_t rows = std::min(kAttentionBlock, end - row);
    span.blocks.push_back({row, rows, align_up(rows, 32), first_block, end_block});
  }
  for (int64_t row = begin; row < end; row += kGemmRows) {
    span.chunks.push_back({row, std::min(kGemmRows, end - row),
                           first_block + (row - begin) / kAttentionBlock, first_block, end_block});
  }
}

}  // namespace

int64_t most_span_blocks(int64_t tokens, int64_t document_len) {
  return std::max(std::min(tokens, kSpanBlocks), div_ceil(document_len, kAttentionBlock));
}

BlockRange blocks_of_keys(const AttentionSpan& span, const AttentionChunk& chunk, int64_t window) {
  int64_t begin = chunk.first_block;
  if (window > 0) {
    const int64_t document = span.blocks[static_cast<size_t>(begin)].row;
    begin += std::max<int64_t>(0, chunk.row - window + 1 - document) / kAttentionBlock;
  }
  return {begin, chunk.block + 1};
}

BlockRange blocks_of_queries(const AttentionSpan& span, const AttentionChunk& chunk,
                             int64_t window) {
  int64_t end = chunk.end_block;
  if (window > 0) {
    const int64_t document = span.blocks[static_cast<size_t>(chunk.first_block)].row;
    const int64_t last = chunk.row + chunk.rows - 1 + window - 1 - document;
    end = std::min(end, chunk.first_block + last / kAttentionBlock + 1);
  }
  return {chunk.block, end};
}

std::vector<AttentionSpan> split_documents(const AttentionShape& shape,
                                           const int32_t* document_start, int64_t documents) {
  CHECK(shape.tokens >= 0 && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  CHECK(shape.head_dim > 0 && shape.head_dim % 2 == 0);
  CHECK(shape.qkv_stride >= shape.head_dim && shape.window >= 0);
  CHECK(documents >= 0 && document_start[0] == 0 && document_start[documents] == shape.tokens);
  std::vector<AttentionSpan> spans;
  for (int64_t d = 0; d < documents; ++d) {
    const int64_t begin = document_start[d], end = document_start[d + 1];
    CHECK(begin <= end, "document %lld has a negative length", static_cast<long long>(d));
    if (begin == end) continue;
    const auto used = spans.empty() ? kSpanBlocks
                                    : static_cast<int64_t>(spans.back().blocks.size());
    if (used + div_ceil(end - begin, kAttentionBlock) > kSpanBlocks) spans.emplace_back();
    add_document(begin, end, spans.back());
  }
  return spans;
}

void copy_chunk(const HeadRows& from, const AttentionChunk& chunk, void* dense) {
  const int64_t row_bytes = from.head_dim * dtype_bytes(from.dt);
  std::byte* out = static_cast<std::byte*>(dense);
  for (int64_t r = 0; r < chunk.rows; ++r) {
    std::memcpy(out + r * row_bytes, from.row(chunk.row + r), static_cast<size_t>(row_bytes));
  }
  std::memset(out + chunk.rows * row_bytes, 0,
              static_cast<size_t>((kGemmRows - chunk.rows) * row_bytes));
}

int64_t PackedBlocks::slot_bytes(DType dt, const AttentionSpan& span, int64_t head_dim) {
  int64_t padded = 0;
  for (const AttentionBlock& block : span.blocks) padded = std::max(padded, block.padded);
  return std::max(gemm_packed_bytes(dt, head_dim, padded), gemm_packed_bytes(dt, padded, head_dim));
}

int64_t PackedBlocks::heads_at_once(DType dt, const AttentionSpan& span, int64_t head_dim,
                                    int64_t kinds, int64_t heads) {
  const int64_t head_bytes = slot_bytes(dt, span, head_dim) * kinds *
                             std::max<int64_t>(1, static_cast<int64_t>(span.blocks.size()));
  return std::clamp<int64_t>(kPackedBudgetBytes / head_bytes, 1, heads);
}

PackedBlocks::PackedBlocks(DType dt, const AttentionSpan& span, int64_t head_dim, int64_t kinds,
                           int64_t heads)
    : span_(&span),
      kinds_(kinds),
      bytes_(slot_bytes(dt, span, head_dim)),
      memory_(scratch_bytes(Scratch::kSharedPacked,
                            heads * kinds * static_cast<int64_t>(span.blocks.size()) * bytes_)) {}

std::byte* PackedBlocks::place(int64_t kind, int64_t head, int64_t block) const {
  const auto blocks = static_cast<int64_t>(span_->blocks.size());
  return memory_ + ((head * blocks + block) * kinds_ + kind) * bytes_;
}

void PackedBlocks::pack(const HeadRows& from, bool transposed, int64_t kind, int64_t head,
                        int64_t block_index) {
  const AttentionBlock& block = span_->blocks[static_cast<size_t>(block_index)];
  const void* rows = from.row(block.row);
  int64_t stride = from.stride;
  if (block.rows < block.padded) {
    const int64_t row_bytes = from.head_dim * dtype_bytes(from.dt);
    std::byte* dense = scratch_bytes(Scratch::kRowA, block.padded * row_bytes);
    std::memset(dense, 0, static_cast<size_t>(block.padded * row_bytes));
    for (int64_t r = 0; r < block.rows; ++r) {
      std::memcpy(dense + r * row_bytes, from.row(block.row + r), static_cast<size_t>(row_bytes));
    }
    rows = dense;
    stride = from.head_dim;
  }
  const int64_t k = transposed ? from.head_dim : block.padded;
  const int64_t n = transposed ? block.padded : from.head_dim;
  gemm_pack(from.dt, rows, stride, transposed, k, n, place(kind, head, block_index));
}

}  // namespace pagoda
