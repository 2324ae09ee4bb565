// Attention over cached keys takes one token's query heads that share a key head at a time. Reading
// the cache dominates the cost, so a row of keys is widened once for all of these heads.
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {
namespace {

struct Cached {
  DType dt;
  AttentionShape shape;
  int64_t capacity;
  const int32_t *sequence, *position;
  const void *q, *k, *v;
  void *cache, *out;
  float scale;

  int64_t kv_dim() const { return shape.kv_heads * shape.head_dim; }
  void* cache_row(int64_t t, int64_t row) const {
    return at(dt, cache, (sequence[t] * capacity + row) * 2 * kv_dim());
  }
};

void store_token(const Cached& c, int64_t t) {
  const auto bytes = static_cast<size_t>(c.kv_dim() * dtype_bytes(c.dt));
  void* row = c.cache_row(t, c.position[t]);
  std::memcpy(row, at(c.dt, c.k, t * c.shape.qkv_stride), bytes);
  std::memcpy(at(c.dt, row, c.kv_dim()), at(c.dt, c.v, t * c.shape.qkv_stride), bytes);
}

void attend_token(const Cached& c, int64_t t, int64_t kv_head) {
  const int64_t dim = c.shape.head_dim, group = c.shape.heads / c.shape.kv_heads;
  const int64_t all = c.position[t] + 1, head = kv_head * group;
  const int64_t keys = c.shape.window > 0 ? std::min(all, c.shape.window) : all;
  const float* q = read_row(c.dt, at(c.dt, c.q, t * c.shape.qkv_stride + head * dim), group * dim,
                            Scratch::kRowA);
  float* scores = scratch_floats(Scratch::kRowB, group * keys);
  float* total = scratch_floats(Scratch::kRowD, group * dim);
  const auto key_or_value = [&](int64_t row, int64_t from) {
    return read_row(c.dt, at(c.dt, c.cache_row(t, all - keys + row), from + kv_head * dim), dim,
                    Scratch::kRowC);
  };
  for (int64_t j = 0; j < keys; ++j) {
    const float* key = key_or_value(j, 0);
    for (int64_t g = 0; g < group; ++g) {
      scores[g * keys + j] = dot(q + g * dim, key, dim) * c.scale;
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    float* row = scores + g * keys;
    float highest = max_of(row, keys), sink = 0.0f;
    if (c.shape.sinks != nullptr) {
      sink = read_number(c.dt, c.shape.sinks, head + g);
      highest = std::max(highest, sink);
    }
    float sum = exp_row(row, keys, highest, row);
    if (c.shape.sinks != nullptr) sum += std::exp(sink - highest);
    scale_row(row, keys, 1.0f / sum, row);
  }
  std::fill_n(total, group * dim, 0.0f);
  for (int64_t j = 0; j < keys; ++j) {
    const float* value = key_or_value(j, c.kv_dim());
    for (int64_t g = 0; g < group; ++g) {
      add_scaled_row(value, dim, scores[g * keys + j], total + g * dim);
    }
  }
  write_row(c.dt, total, group * dim, at(c.dt, c.out, (t * c.shape.heads + head) * dim));
}

}  // namespace

void CpuOps::cached_attention(DType dt, const AttentionShape& shape, int64_t capacity,
                              const int32_t* sequence, const int32_t* position, const void* q,
                              const void* k, const void* v, void* cache, void* out, Stream& s) {
  CHECK(shape.tokens >= 0 && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  CHECK(shape.head_dim > 0 && capacity > 0);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  const Cached c{dt, shape, capacity, sequence, position, q, k, v, cache, out, scale};
  s.enqueue([c, pool = &s.pool()] {
    const int64_t tokens = c.shape.tokens, kv_heads = c.shape.kv_heads;
    for (int64_t t = 0; t < tokens; ++t) {
      CHECK(c.position[t] >= 0 && c.position[t] < c.capacity);
      store_token(c, t);
    }
    for_blocks(*pool, tokens * kv_heads, 1, [&](int64_t i, int64_t) {
      attend_token(c, i / kv_heads, i % kv_heads);
    });
  });
}

}  // namespace pagoda
