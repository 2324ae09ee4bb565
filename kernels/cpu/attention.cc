// Causal attention with online softmax (Milakov & Gimelshein 2018), tiled as in FlashAttention (Dao
// et al. 2022). The probabilities that multiply v are rounded to dt, as that kernel does; sums are
// fp32.
#include <cmath>
#include <limits>

#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/attention/attention_tiles.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

// Running maximum and sum of a row's exponentials.
struct SoftmaxRow {
  float highest;
  float sum;
};

// Scores from `i` on, of which those of columns [begin, end) are seen; the others are -infinity.
PAGODA_INLINE Vec seen_lanes(const float* scores, int64_t i, int64_t begin, int64_t end) {
  const float lowest = -std::numeric_limits<float>::infinity();
  const Vec v = load_lanes(scores + i, std::min(kLanes, end - i), lowest);
  if (i >= begin) return v;
  return columns_from(i) < static_cast<float>(begin) ? splat(lowest) : v;
}

// One row of a tile: scores (width, a multiple of 16) of columns [begin, end) become exp(score *
// scale - highest), others 0. Returns by how much earlier sums of the row must shrink.
PAGODA_INLINE float softmax_row(int64_t begin, int64_t end, int64_t width, float scale,
                                float* scores, SoftmaxRow& state) {
  if (begin >= end) {
    for (int64_t i = 0; i < width; i += kLanes) store(scores + i, Vec{});
    return 1.0f;
  }
  Vec best = splat(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < end; i += kLanes) {
    const Vec v = seen_lanes(scores, i, begin, end);
    best = v > best ? v : best;
  }
  const float highest = std::max(state.highest, max_lane(best) * scale);
  Vec sum{};
  for (int64_t i = 0; i < width; i += kLanes) {
    if (i >= end) {
      store(scores + i, Vec{});
      continue;
    }
    const Vec e = exp_lanes(seen_lanes(scores, i, begin, end) * scale - highest);
    sum += e;
    store(scores + i, e);
  }
  const float shrink = exp_lanes(splat(state.highest - highest))[0];
  state.sum = state.sum * shrink + sum_lanes(sum);
  state.highest = highest;
  return shrink;
}

// A tile of scores (rows, width). Row r may see the first `visible + r` columns, at most `columns`,
// of which `window` leaves the last (0: all). `total` (rows, head_dim) holds the output so far and
// shrinks with the maxima.
PAGODA_TARGET_CLONES void softmax_tile(int64_t rows, int64_t width, int64_t visible,
                                       int64_t columns, int64_t window, float scale, float* scores,
                                       SoftmaxRow* state, int64_t head_dim, float* total) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t begin = window > 0 ? std::max<int64_t>(0, visible + r - window) : 0;
    const int64_t end = std::min(columns, visible + r);
    const float shrink = softmax_row(begin, end, width, scale, scores + r * width, state[r]);
    if (shrink == 1.0f) continue;
    for (int64_t j = 0; j < head_dim; ++j) total[r * head_dim + j] *= shrink;
  }
}

struct Forward {
  DType dt;
  AttentionShape shape;
  const void *q, *k, *v;
  void* out;
  float* lse;
  float scale;
};

HeadRows head_rows(const Forward& f, const void* base, int64_t head) {
  return {f.dt, at(f.dt, base, head * f.shape.head_dim), f.shape.qkv_stride, f.shape.head_dim};
}

// total (kGemmRows, head_dim) = the chunk's softmax-weighted sum of v, before division by the sum.
void attend(const Forward& f, const AttentionSpan& span, const AttentionChunk& chunk,
            const PackedBlocks& packed, int64_t slot, const void* q, float* total,
            SoftmaxRow* state) {
  const int64_t head_dim = f.shape.head_dim;
  float* scores = scratch_floats(Scratch::kRowC, kGemmRows * kAttentionBlock);
  const BlockRange keys = blocks_of_keys(span, chunk, f.shape.window);
  for (int64_t b = keys.begin; b < keys.end; ++b) {
    const AttentionBlock& block = span.blocks[static_cast<size_t>(b)];
    gemm_multiply(f.dt, chunk.rows, block.padded, head_dim, q, packed.get(0, slot, b), scores,
                  false);
    softmax_tile(chunk.rows, block.padded, chunk.row + 1 - block.row, block.rows, f.shape.window,
                 f.scale, scores, state, head_dim, total);
    const void* probabilities = scores;
    if (f.dt == DType::kBF16) {
      void* rounded = scratch_bytes(Scratch::kRowD, kGemmRows * kAttentionBlock * 2);
      write_row(f.dt, scores, chunk.rows * block.padded, rounded);
      probabilities = rounded;
    }
    gemm_multiply(f.dt, chunk.rows, head_dim, block.padded, probabilities, packed.get(1, slot, b),
                  total, true);
  }
}

// A sink is there before any key.
SoftmaxRow first_row_state(const Forward& f, int64_t head) {
  if (f.shape.sinks == nullptr) return {-std::numeric_limits<float>::infinity(), 0.0f};
  return {read_number(f.dt, f.shape.sinks, head), 1.0f};
}

void attend_chunk(const Forward& f, const AttentionSpan& span, const AttentionChunk& chunk,
                  const PackedBlocks& packed, int64_t slot, int64_t head) {
  const int64_t head_dim = f.shape.head_dim;
  std::byte* q = scratch_bytes(Scratch::kRowA, kGemmRows * head_dim * dtype_bytes(f.dt));
  copy_chunk(head_rows(f, f.q, head), chunk, q);
  float* total = scratch_floats(Scratch::kRowB, kGemmRows * head_dim);
  std::fill_n(total, kGemmRows * head_dim, 0.0f);
  SoftmaxRow state[kGemmRows];
  std::fill_n(state, kGemmRows, first_row_state(f, head));
  attend(f, span, chunk, packed, slot, q, total, state);
  for (int64_t r = 0; r < chunk.rows; ++r) {
    const int64_t t = chunk.row + r;
    float* row = total + r * head_dim;
    scale_row(row, head_dim, 1.0f / state[r].sum, row);
    write_row(f.dt, row, head_dim, at(f.dt, f.out, (t * f.shape.heads + head) * head_dim));
    f.lse[head * f.shape.tokens + t] = state[r].highest + std::log(state[r].sum);
  }
}

// kv heads [first, first + count): their keys and values packed once, then every query head on
// them.
void attend_heads(const Forward& f, const AttentionSpan& span, int64_t first, int64_t count,
                  ThreadPool& pool) {
  const int64_t group = f.shape.heads / f.shape.kv_heads;
  PackedBlocks packed(f.dt, span, f.shape.head_dim, 2, count);
  pool.parallel_for(static_cast<int64_t>(span.blocks.size()) * count, [&](int64_t i) {
    const int64_t slot = i % count, block = i / count;
    packed.pack(head_rows(f, f.k, first + slot), true, 0, slot, block);
    packed.pack(head_rows(f, f.v, first + slot), false, 1, slot, block);
  });
  const int64_t heads = count * group;
  pool.parallel_for(static_cast<int64_t>(span.chunks.size()) * heads, [&](int64_t i) {
    const int64_t head = i % heads;
    attend_chunk(f, span, span.chunks[static_cast<size_t>(i / heads)], packed, head / group,
                 first * group + head);
  });
}

AttentionTensors tensors_of(const Forward& f) {
  const auto bf16_of = [](const void* p) { return static_cast<const bf16*>(p); };
  return {f.shape, bf16_of(f.q), bf16_of(f.k), bf16_of(f.v), static_cast<bf16*>(f.out), f.lse};
}

}  // namespace

void CpuOps::attention(DType dt, const AttentionShape& shape, const int32_t* document_start,
                       int64_t documents, const void* q, const void* k, const void* v, void* out,
                       float* lse, Stream& s) {
  auto spans = split_documents(shape, document_start, documents);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  const Forward f{dt, shape, q, k, v, out, lse, scale};
  s.enqueue([f, spans = std::move(spans), pool = &s.pool()] {
    const BlockKernel* kernel = attention_kernel(f.dt, f.shape);
    for (const AttentionSpan& span : spans) {
      if (kernel != nullptr) {
        attend_by_blocks(*kernel, tensors_of(f), span, *pool);
        continue;
      }
      const int64_t at_once = PackedBlocks::heads_at_once(f.dt, span, f.shape.head_dim, 2,
                                                          f.shape.kv_heads);
      for (int64_t head = 0; head < f.shape.kv_heads; head += at_once) {
        attend_heads(f, span, head, std::min(at_once, f.shape.kv_heads - head), *pool);
      }
    }
  });
}

}  // namespace pagoda
