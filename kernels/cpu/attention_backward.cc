// The gradient of causal attention (FlashAttention-2's formulas, Dao 2023). With s the scaled
// scores, p = exp(s - lse) and D = sum(dout * out):
//   dv = p^T dout     ds = p (dout v^T - D)     dq = scale ds k     dk = scale ds^T q
// Two sweeps, so that every output row has one writer and no sum depends on timing: by query chunks
// for dq, by key chunks for dk and dv. The second works on transposed tiles. p and ds are rounded
// to dt before they multiply.
#include <cmath>

#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/attention/attention_tiles.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

struct Backward {
  DType dt;
  AttentionShape shape;
  const void *q, *k, *v;
  const void *out, *dout;  // (tokens, heads * head_dim)
  const float* lse;
  void *dq, *dk, *dv;
  float scale;
  float* delta;  // D, (heads, tokens)
};

HeadRows qkv_rows(const Backward& b, const void* base, int64_t head) {
  return {b.dt, at(b.dt, base, head * b.shape.head_dim), b.shape.qkv_stride, b.shape.head_dim};
}
HeadRows out_rows(const Backward& b, const void* base, int64_t head) {
  return {b.dt, at(b.dt, base, head * b.shape.head_dim), b.shape.heads * b.shape.head_dim,
          b.shape.head_dim};
}

void compute_delta(const Backward& b, ThreadPool& pool) {
  const int64_t row_elements = b.shape.heads * b.shape.head_dim;
  for_blocks(pool, b.shape.tokens, rows_per_block(row_elements), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* out = read_row(b.dt, at(b.dt, b.out, t * row_elements), row_elements,
                                  Scratch::kRowA);
      const float* dout = read_row(b.dt, at(b.dt, b.dout, t * row_elements), row_elements,
                                   Scratch::kRowB);
      for (int64_t h = 0; h < b.shape.heads; ++h) {
        b.delta[h * b.shape.tokens + t] =
            dot(out + h * b.shape.head_dim, dout + h * b.shape.head_dim, b.shape.head_dim);
      }
    }
  });
}

// The first of `visible` columns that a window leaves.
PAGODA_INLINE float first_seen(int64_t visible, int64_t window) {
  return window > 0 ? static_cast<float>(visible - window) : 0.0f;
}

// Tile of queries x keys: scores become ds, from dp = dout v^T. Row r sees the first `visible + r`
// columns, at most `columns`, of which `window` leaves the last (0: all); the rest become 0.
PAGODA_TARGET_CLONES void score_gradient_tile(int64_t rows, int64_t width, int64_t visible,
                                              int64_t columns, int64_t window, float scale,
                                              const float* lse, const float* delta, const float* dp,
                                              float* scores) {
  for (int64_t r = 0; r < rows; ++r) {
    const float begin = first_seen(visible + r, window);
    const float end = static_cast<float>(std::min(columns, visible + r));
    for (int64_t i = 0; i < width; i += kLanes) {
      float* place = scores + r * width + i;
      const Vec p = exp_lanes(load(place) * scale - lse[r]);
      const Vec ds = p * (load(dp + r * width + i) - delta[r]);
      const Vec column = columns_from(i);
      store(place, ((column >= begin) & (column < end)) ? ds : Vec{});
    }
  }
}

// Tile of keys x queries: scores become p, dp becomes ds. Row r (a key) is seen by columns
// (queries) from `first + r` to `columns`, and by `window` of them (0: all); lse and delta belong
// to the columns and are `width` long.
PAGODA_TARGET_CLONES void transposed_gradient_tile(int64_t rows, int64_t width, int64_t first,
                                                   int64_t columns, int64_t window, float scale,
                                                   const float* lse, const float* delta,
                                                   float* scores, float* dp) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t last = window > 0 ? std::min(columns, first + r + window) : columns;
    const float end = static_cast<float>(last);
    const float begin = static_cast<float>(first + r);
    for (int64_t i = 0; i < width; i += kLanes) {
      float* score = scores + r * width + i;
      float* gradient = dp + r * width + i;
      const Vec column = columns_from(i);
      const Vec p = exp_lanes(load(score) * scale - load(lse + i));
      const Vec ds = p * (load(gradient) - load(delta + i));
      const auto seen = (column >= begin) & (column < end);
      store(score, seen ? p : Vec{});
      store(gradient, seen ? ds : Vec{});
    }
  }
}

// A tile (rows of kGemmRows, width) as the left operand of a multiply: fp32 as it is, or rounded.
const void* rounded_tile(DType dt, const float* tile, int64_t rows, int64_t width, Scratch use) {
  if (dt == DType::kF32) return tile;
  void* rounded = scratch_bytes(use, kGemmRows * width * dtype_bytes(dt));
  write_row(dt, tile, rows * width, rounded);
  return rounded;
}

constexpr int64_t kTileElements = kGemmRows * kAttentionBlock;

// ---- sweep by queries: dq. Packed: 0 k^T, 1 v^T, 2 k ----

void query_gradient_chunk(const Backward& b, const AttentionSpan& span,
                          const AttentionChunk& chunk, const PackedBlocks& packed, int64_t slot,
                          int64_t head) {
  const int64_t dim = b.shape.head_dim, bytes = kGemmRows * dim * dtype_bytes(b.dt);
  std::byte* q = scratch_bytes(Scratch::kRowA, 2 * bytes);
  std::byte* dout = q + bytes;
  copy_chunk(qkv_rows(b, b.q, head), chunk, q);
  copy_chunk(out_rows(b, b.dout, head), chunk, dout);
  float* scores = scratch_floats(Scratch::kRowB, 2 * kTileElements);
  float* dp = scores + kTileElements;
  float* dq = scratch_floats(Scratch::kRowC, kGemmRows * dim);
  const int64_t row = head * b.shape.tokens + chunk.row;
  const BlockRange keys = blocks_of_keys(span, chunk, b.shape.window);
  for (int64_t i = keys.begin; i < keys.end; ++i) {
    const AttentionBlock& block = span.blocks[static_cast<size_t>(i)];
    gemm_multiply(b.dt, chunk.rows, block.padded, dim, q, packed.get(0, slot, i), scores, false);
    gemm_multiply(b.dt, chunk.rows, block.padded, dim, dout, packed.get(1, slot, i), dp, false);
    score_gradient_tile(chunk.rows, block.padded, chunk.row + 1 - block.row, block.rows,
                        b.shape.window, b.scale, b.lse + row, b.delta + row, dp, scores);
    const void* ds = rounded_tile(b.dt, scores, chunk.rows, block.padded, Scratch::kRowD);
    gemm_multiply(b.dt, chunk.rows, dim, block.padded, ds, packed.get(2, slot, i), dq,
                  i > keys.begin);
  }
  for (int64_t r = 0; r < chunk.rows; ++r) {
    scale_row(dq + r * dim, dim, b.scale, dq + r * dim);
    write_row(b.dt, dq + r * dim, dim,
              at(b.dt, b.dq, (chunk.row + r) * b.shape.qkv_stride + head * dim));
  }
}

void query_gradients(const Backward& b, const AttentionSpan& span, int64_t first, int64_t count,
                     ThreadPool& pool) {
  const int64_t group = b.shape.heads / b.shape.kv_heads;
  PackedBlocks packed(b.dt, span, b.shape.head_dim, 3, count);
  pool.parallel_for(static_cast<int64_t>(span.blocks.size()) * count, [&](int64_t i) {
    const int64_t slot = i % count, block = i / count;
    packed.pack(qkv_rows(b, b.k, first + slot), true, 0, slot, block);
    packed.pack(qkv_rows(b, b.v, first + slot), true, 1, slot, block);
    packed.pack(qkv_rows(b, b.k, first + slot), false, 2, slot, block);
  });
  const int64_t heads = count * group;
  pool.parallel_for(static_cast<int64_t>(span.chunks.size()) * heads, [&](int64_t i) {
    const int64_t head = i % heads;
    query_gradient_chunk(b, span, span.chunks[static_cast<size_t>(i / heads)], packed,
                         head / group, first * group + head);
  });
}

// ---- sweep by keys: dk, dv. Packed: 0 q^T, 1 dout^T, 2 q, 3 dout ----

// A row of per-query numbers of a block, padded with zeros.
void copy_padded(const float* from, const AttentionBlock& block, float* out) {
  std::copy_n(from, block.rows, out);
  std::fill_n(out + block.rows, block.padded - block.rows, 0.0f);
}

// Adds one query head's part to dk and dv (kGemmRows, head_dim) of a key chunk; `accumulate` is
// false for the first head of the group.
void key_gradient_chunk(const Backward& b, const AttentionSpan& span, const AttentionChunk& chunk,
                        const PackedBlocks& packed, int64_t slot, int64_t head, int64_t kv_head,
                        bool accumulate, float* dk, float* dv) {
  const int64_t dim = b.shape.head_dim, bytes = kGemmRows * dim * dtype_bytes(b.dt);
  std::byte* k = scratch_bytes(Scratch::kRowA, 2 * bytes);
  std::byte* v = k + bytes;
  copy_chunk(qkv_rows(b, b.k, kv_head), chunk, k);
  copy_chunk(qkv_rows(b, b.v, kv_head), chunk, v);
  float* scores = scratch_floats(Scratch::kRowB, 2 * kTileElements);
  float* dp = scores + kTileElements;
  float* lse = scratch_floats(Scratch::kRowC, 2 * kAttentionBlock);
  float* delta = lse + kAttentionBlock;
  const BlockRange queries = blocks_of_queries(span, chunk, b.shape.window);
  for (int64_t i = queries.begin; i < queries.end; ++i) {
    const AttentionBlock& block = span.blocks[static_cast<size_t>(i)];
    copy_padded(b.lse + head * b.shape.tokens + block.row, block, lse);
    copy_padded(b.delta + head * b.shape.tokens + block.row, block, delta);
    gemm_multiply(b.dt, chunk.rows, block.padded, dim, k, packed.get(0, slot, i), scores, false);
    gemm_multiply(b.dt, chunk.rows, block.padded, dim, v, packed.get(1, slot, i), dp, false);
    transposed_gradient_tile(chunk.rows, block.padded, chunk.row - block.row, block.rows,
                             b.shape.window, b.scale, lse, delta, scores, dp);
    const void* p = rounded_tile(b.dt, scores, chunk.rows, block.padded, Scratch::kRowD);
    const void* ds = rounded_tile(b.dt, dp, chunk.rows, block.padded, Scratch::kRowE);
    const bool add = accumulate || i > queries.begin;
    gemm_multiply(b.dt, chunk.rows, dim, block.padded, p, packed.get(3, slot, i), dv, add);
    gemm_multiply(b.dt, chunk.rows, dim, block.padded, ds, packed.get(2, slot, i), dk, add);
  }
}

void store_key_gradients(const Backward& b, const AttentionChunk& chunk, int64_t kv_head,
                         float* dk, const float* dv) {
  const int64_t dim = b.shape.head_dim;
  for (int64_t r = 0; r < chunk.rows; ++r) {
    const int64_t place = (chunk.row + r) * b.shape.qkv_stride + kv_head * dim;
    scale_row(dk + r * dim, dim, b.scale, dk + r * dim);
    write_row(b.dt, dk + r * dim, dim, at(b.dt, b.dk, place));
    write_row(b.dt, dv + r * dim, dim, at(b.dt, b.dv, place));
  }
}

// kv heads [first, first + count), their query heads one after the other.
void key_gradients(const Backward& b, const AttentionSpan& span, int64_t first, int64_t count,
                   ThreadPool& pool) {
  const int64_t group = b.shape.heads / b.shape.kv_heads;
  const int64_t chunk_elements = kGemmRows * b.shape.head_dim;
  const auto chunks = static_cast<int64_t>(span.chunks.size());
  PackedBlocks packed(b.dt, span, b.shape.head_dim, 4, count);
  float* sums = scratch_floats(Scratch::kSharedSums, 2 * chunks * count * chunk_elements);
  for (int64_t member = 0; member < group; ++member) {
    pool.parallel_for(static_cast<int64_t>(span.blocks.size()) * count, [&](int64_t i) {
      const int64_t slot = i % count, block = i / count, head = (first + slot) * group + member;
      packed.pack(qkv_rows(b, b.q, head), true, 0, slot, block);
      packed.pack(out_rows(b, b.dout, head), true, 1, slot, block);
      packed.pack(qkv_rows(b, b.q, head), false, 2, slot, block);
      packed.pack(out_rows(b, b.dout, head), false, 3, slot, block);
    });
    pool.parallel_for(chunks * count, [&](int64_t i) {
      const AttentionChunk& chunk = span.chunks[static_cast<size_t>(i / count)];
      const int64_t slot = i % count, kv_head = first + slot;
      float* dk = sums + 2 * i * chunk_elements;
      float* dv = dk + chunk_elements;
      key_gradient_chunk(b, span, chunk, packed, slot, kv_head * group + member, kv_head,
                         member > 0, dk, dv);
      if (member == group - 1) store_key_gradients(b, chunk, kv_head, dk, dv);
    });
  }
}

AttentionGradients gradients_of(const Backward& b) {
  const auto from = [](const void* p) { return static_cast<const bf16*>(p); };
  const auto to = [](void* p) { return static_cast<bf16*>(p); };
  return {b.shape, from(b.q), from(b.k), from(b.v), from(b.dout), b.lse,
          b.delta, to(b.dq),  to(b.dk),  to(b.dv)};
}

}  // namespace

void CpuOps::attention_backward(DType dt, const AttentionShape& shape,
                                const int32_t* document_start, int64_t documents, const void* q,
                                const void* k, const void* v, const void* out, const float* lse,
                                const void* dout, void* dq, void* dk, void* dv, Stream& s) {
  auto spans = split_documents(shape, document_start, documents);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  const Backward call{dt, shape, q, k, v, out, dout, lse, dq, dk, dv, scale, nullptr};
  s.enqueue([call, spans = std::move(spans), pool = &s.pool()] {
    std::vector<float> delta(static_cast<size_t>(call.shape.heads * call.shape.tokens));
    Backward b = call;
    b.delta = delta.data();
    compute_delta(b, *pool);
    const int64_t kv_heads = b.shape.kv_heads;
    const BlockKernel* kernel = attention_kernel(b.dt, b.shape);
    for (const AttentionSpan& span : spans) {
      if (kernel != nullptr) {
        attend_backward_by_blocks(*kernel, gradients_of(b), span, *pool);
        continue;
      }
      const int64_t dim = b.shape.head_dim;
      const int64_t at_once = PackedBlocks::heads_at_once(b.dt, span, dim, 4, kv_heads);
      for (int64_t head = 0; head < kv_heads; head += at_once) {
        const int64_t count = std::min(at_once, kv_heads - head);
        query_gradients(b, span, head, count, *pool);
        key_gradients(b, span, head, count, *pool);
      }
    }
  });
}

void CpuOps::attention_sinks_backward(DType dt, const AttentionShape& shape, const void* out,
                                      const float* lse, const void* dout, float* dsinks,
                                      Stream& s) {
  CHECK(shape.sinks != nullptr && shape.tokens >= 0);
  s.enqueue([=, pool = &s.pool()] {
    const int64_t heads = shape.heads, dim = shape.head_dim, row = heads * dim;
    const int64_t blocks = div_ceil(shape.tokens, kRowBlock);
    float* partial = scratch_floats(Scratch::kSharedSums, blocks * heads);
    pool->parallel_for(blocks, [&](int64_t block) {
      const int64_t begin = block * kRowBlock, end = std::min(shape.tokens, begin + kRowBlock);
      float* sums = partial + block * heads;
      std::fill_n(sums, heads, 0.0f);
      for (int64_t t = begin; t < end; ++t) {
        const float* o = read_row(dt, at(dt, out, t * row), row, Scratch::kRowA);
        const float* g = read_row(dt, at(dt, dout, t * row), row, Scratch::kRowB);
        for (int64_t h = 0; h < heads; ++h) {
          const float sink = read_number(dt, shape.sinks, h);
          const float p = std::exp(sink - lse[h * shape.tokens + t]);
          sums[h] += p * dot(o + h * dim, g + h * dim, dim);
        }
      }
    });
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t h = 0; h < heads; ++h) dsinks[h] -= partial[block * heads + h];
    }
  });
}

}  // namespace pagoda
