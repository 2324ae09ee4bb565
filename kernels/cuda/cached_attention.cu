// Attention over cached keys: a block has a query head of a token and takes its keys in pieces of
// one a thread, with an online softmax over the pieces; then threads share out the head's columns.
#include "kernels/cuda/machine/reduce.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

template <typename T>
struct StoreTokens {
  const int32_t *sequence, *position;
  const T *k, *v;
  int64_t capacity, kv_dim, stride;
  T* cache;
  PAGODA_GPU void operator()(int64_t t, int64_t j) const {
    require(position[t] >= 0 && position[t] < capacity);
    const int64_t row = (sequence[t] * capacity + position[t]) * 2 * kv_dim;
    cache[row + j] = k[t * stride + j];
    cache[row + kv_dim + j] = v[t * stride + j];
  }
};

template <typename T>
struct CachedAttention {
  static constexpr int kThreads = 128, kSharedBytes = kThreads * 4 + kThreads / kWarp * 4;
  static constexpr int kColumns = 4;  // a thread's columns of the head at most
  AttentionShape shape;
  int64_t capacity;
  const int32_t *sequence, *position;
  const T *q, *cache;
  T* out;
  float scale;

  PAGODA_GPU float score(const T* query, const T* key) const {
    float sum = 0.0f;
    for (int64_t j = 0; j < shape.head_dim; ++j) sum += widen(query[j]) * widen(key[j]);
    return sum * scale;
  }

  PAGODA_GPU void operator()() const {
    float* probs = reinterpret_cast<float*>(shared_memory());
    float* memory = probs + kThreads;
    const int64_t t = quotient(block_number(), shape.heads);
    const int64_t head = block_number() - t * shape.heads;
    const int64_t dim = shape.head_dim, kv_dim = shape.kv_heads * dim;
    const T* query = q + t * shape.qkv_stride + head * dim;
    const int64_t all = position[t] + 1;
    const int64_t count = shape.window > 0 ? smaller(all, shape.window) : all;
    const T* keys = cache + (sequence[t] * capacity + all - count) * 2 * kv_dim +
                    head / (shape.heads / shape.kv_heads) * dim;
    float highest = -INFINITY, sum = 0.0f, total[kColumns] = {};
    if (shape.sinks != nullptr) {  // it is there before any key
      highest = widen(static_cast<const T*>(shape.sinks)[head]);
      sum = 1.0f;
    }
    for (int64_t first = 0; first < count; first += kThreads) {
      const int64_t key = first + thread_number();
      const float mine = key < count ? score(query, keys + key * 2 * kv_dim) : -INFINITY;
      const float best = larger(highest, join_block<kThreads>(mine, Largest(), memory));
      const float shrink = exponential(highest - best);
      const float e = key < count ? exponential(mine - best) : 0.0f;
      probs[thread_number()] = e;
      sum = sum * shrink + join_block<kThreads>(e, Sum(), memory);
      highest = best;
      const T* values = keys + first * 2 * kv_dim + kv_dim;
      const int64_t here = smaller(kThreads, count - first);
      for (int c = 0; c < kColumns; ++c) {
        const int64_t j = thread_number() + c * kThreads;
        if (j >= dim) break;
        total[c] *= shrink;
        for (int64_t i = 0; i < here; ++i) total[c] += probs[i] * widen(values[i * 2 * kv_dim + j]);
      }
      sync_block();
    }
    const float reciprocal = 1.0f / sum;
    for (int c = 0; c < kColumns; ++c) {
      const int64_t j = thread_number() + c * kThreads;
      if (j < dim) out[(t * shape.heads + head) * dim + j] = rounded<T>(total[c] * reciprocal);
    }
  }
};

}  // namespace

void CudaOps::cached_attention(DType dt, const AttentionShape& shape, int64_t capacity,
                               const int32_t* sequence, const int32_t* position, const void* q,
                               const void* k, const void* v, void* cache, void* out, Stream& s) {
  CHECK(shape.tokens >= 0 && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  CHECK(shape.head_dim > 0 && shape.head_dim <= 512 && capacity > 0);
  Queue queue(s, "cached_attention");
  const int64_t kv_dim = shape.kv_heads * shape.head_dim;
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, shape.tokens, kv_dim,
                     StoreTokens<T>{sequence, position, typed<T>(k), typed<T>(v), capacity, kv_dim,
                                    shape.qkv_stride, typed<T>(cache)});
    queue.launch(shape.tokens * shape.heads,
                 CachedAttention<T>{shape, capacity, sequence, position, typed<T>(q),
                                    typed<T>(cache), typed<T>(out), scale});
  });
}

}  // namespace pagoda::PAGODA_MACHINE
