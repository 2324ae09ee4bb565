// Cuts attention into tiles, for forward and backward alike.
//
// Documents are independent. Each is cut into blocks of up to 128 rows, which are packed as the
// right operand of multiplies (padded with zero rows to a multiple of 32, so that few sizes of
// kernel exist), and into chunks of up to 64 rows, the left operands. A tile is chunk x block.
#pragma once

#include <vector>

#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/ops.h"

namespace pagoda {

inline constexpr int64_t kAttentionBlock = 128;
// Packed heads of a span fill this many bytes, or are one head.
inline constexpr int64_t kPackedBudgetBytes = 8 * kMiB;

// The most blocks of a span, in calls of `tokens` rows with documents of up to `document_len`.
int64_t most_span_blocks(int64_t tokens, int64_t document_len);

struct AttentionBlock {
  int64_t row = 0, rows = 0;
  int64_t padded = 0;  // rows rounded up to a multiple of 32
  int64_t first = 0, end = 0;  // the blocks of its document
};

struct AttentionChunk {
  int64_t row = 0, rows = 0;
  int64_t block = 0;                      // the block that holds its rows
  int64_t first_block = 0, end_block = 0;  // the blocks of its document
};

// The blocks of keys [begin, end) that some query of the chunk sees, and the blocks of queries that
// see some key of it. window: AttentionShape's.
struct BlockRange {
  int64_t begin = 0, end = 0;
};

// Some neighbouring documents, few enough that their packed operands stay small.
struct AttentionSpan {
  std::vector<AttentionBlock> blocks;
  std::vector<AttentionChunk> chunks;
};

BlockRange blocks_of_keys(const AttentionSpan& span, const AttentionChunk& chunk, int64_t window);
BlockRange blocks_of_queries(const AttentionSpan& span, const AttentionChunk& chunk,
                             int64_t window);

// CHECKs shape and documents.
std::vector<AttentionSpan> split_documents(const AttentionShape& shape,
                                           const int32_t* document_start, int64_t documents);

// One head's columns of q, k, v or of a gradient: row t at base + t * stride elements.
struct HeadRows {
  DType dt;
  const void* base;
  int64_t stride, head_dim;
  const void* row(int64_t t) const { return at(dt, base, t * stride); }
};

// Rows of a chunk made dense: (kGemmRows, head_dim), rows beyond the chunk zero.
void copy_chunk(const HeadRows& from, const AttentionChunk& chunk, void* dense);

// Packed operands of a span: `kinds` of them per head and block.
class PackedBlocks {
 public:
  // How many heads to pack at once: as many as fit into a few MiB, by shape alone.
  static int64_t heads_at_once(DType dt, const AttentionSpan& span, int64_t head_dim,
                               int64_t kinds, int64_t heads);
  // Lives in the calling thread's kSharedPacked scratch.
  PackedBlocks(DType dt, const AttentionSpan& span, int64_t head_dim, int64_t kinds, int64_t heads);

  // Packs a block as (padded, head_dim), or transposed as (head_dim, padded).
  void pack(const HeadRows& from, bool transposed, int64_t kind, int64_t head, int64_t block);
  const void* get(int64_t kind, int64_t head, int64_t block) const {
    return place(kind, head, block);
  }

 private:
  static int64_t slot_bytes(DType dt, const AttentionSpan& span, int64_t head_dim);
  std::byte* place(int64_t kind, int64_t head, int64_t block) const;

  const AttentionSpan* span_;
  int64_t kinds_, bytes_;
  std::byte* memory_;
};

}  // namespace pagoda
