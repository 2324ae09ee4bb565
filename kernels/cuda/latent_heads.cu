// Heads of multi-head latent attention and columns of matrices (kernels/cpu/latent_heads.cc).
// Frequencies come from the host, as the CPU's do; sines and cosines are computed in double.
#include "kernels/cuda/machine/numbers.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// Where a token's numbers lie.
struct LatentSizes {
  int64_t heads, plain, rotated, value, dim, q_stride, shared_stride;
  bool neighbours;
  float query_scale;
  const int32_t* positions;
  const double* frequency;
  double size;

  PAGODA_GPU int64_t key() const { return plain + rotated; }
  PAGODA_GPU int64_t low(int64_t i) const { return neighbours ? 2 * i : i; }
  PAGODA_GPU int64_t high(int64_t i) const { return neighbours ? 2 * i + 1 : rotated / 2 + i; }
  PAGODA_GPU int64_t q(int64_t t, int64_t h) const { return t * q_stride + h * key(); }
  PAGODA_GPU int64_t kv(int64_t t, int64_t h) const {
    return t * heads * (plain + value) + h * (plain + value);
  }
  // Queries are part 0, keys 1, values 2.
  PAGODA_GPU int64_t head(int64_t t, int64_t part, int64_t h) const {
    return (t * 3 + part) * heads * dim + h * dim;
  }
  PAGODA_GPU void turn(int64_t t, int64_t i, float& cosine, float& sine) const {
    const double angle = positions[t] * frequency[i];
    cosine = static_cast<float>(size * cos(angle));
    sine = static_cast<float>(size * sin(angle));
  }
};

// A thread rotates a token's pair i in all its queries and in the key that they share.
template <typename T>
struct TurnedHeads {
  LatentSizes z;
  const T *q, *shared;
  T* qkv;
  PAGODA_GPU void operator()(int64_t t, int64_t i) const {
    float cosine, sine;
    z.turn(t, i, cosine, sine);
    const int64_t low = z.low(i), high = z.high(i), rest = z.plain;
    const float a = widen(shared[t * z.shared_stride + low]);
    const float b = widen(shared[t * z.shared_stride + high]);
    const T key_low = rounded<T>(a * cosine - b * sine);
    const T key_high = rounded<T>(b * cosine + a * sine);
    for (int64_t h = 0; h < z.heads; ++h) {
      const T* from = q + z.q(t, h) + rest;
      T *query = qkv + z.head(t, 0, h) + rest, *key = qkv + z.head(t, 1, h) + rest;
      const float c = widen(from[low]), d = widen(from[high]);
      query[low] = rounded<T>(z.query_scale * (c * cosine - d * sine));
      query[high] = rounded<T>(z.query_scale * (d * cosine + c * sine));
      key[low] = key_low;
      key[high] = key_high;
    }
  }
};

// What is not rotated; a column is a number of a head.
template <typename T>
struct PlainHeads {
  LatentSizes z;
  const T *q, *kv;
  T* qkv;
  PAGODA_GPU void operator()(int64_t t, int64_t column) const {
    const int64_t h = quotient(column, z.dim), i = column - h * z.dim;
    T *query = qkv + z.head(t, 0, h), *key = qkv + z.head(t, 1, h);
    if (i < z.plain) {
      query[i] = rounded<T>(z.query_scale * widen(q[z.q(t, h) + i]));
      key[i] = kv[z.kv(t, h) + i];
    } else if (i >= z.key()) {
      query[i] = key[i] = rounded<T>(0.0f);
    }
    qkv[z.head(t, 2, h) + i] = i < z.value ? kv[z.kv(t, h) + z.plain + i] : rounded<T>(0.0f);
  }
};

template <typename T>
struct TurnedHeadsBackward {
  LatentSizes z;
  const T* dqkv;
  T *dq, *dshared;
  PAGODA_GPU void operator()(int64_t t, int64_t i) const {
    float cosine, sine;
    z.turn(t, i, cosine, sine);
    const float back = -sine;
    const int64_t low = z.low(i), high = z.high(i), rest = z.plain;
    float a = 0.0f, b = 0.0f;
    for (int64_t h = 0; h < z.heads; ++h) {
      const T *query = dqkv + z.head(t, 0, h) + rest, *key = dqkv + z.head(t, 1, h) + rest;
      T* to = dq + z.q(t, h) + rest;
      const float c = widen(query[low]), d = widen(query[high]);
      to[low] = rounded<T>(z.query_scale * (c * cosine - d * back));
      to[high] = rounded<T>(z.query_scale * (d * cosine + c * back));
      a += widen(key[low]);
      b += widen(key[high]);
    }
    dshared[t * z.shared_stride + low] = rounded<T>(a * cosine - b * back);
    dshared[t * z.shared_stride + high] = rounded<T>(b * cosine + a * back);
  }
};

// A column is a number of [plain | value] of a head.
template <typename T>
struct PlainHeadsBackward {
  LatentSizes z;
  const T* dqkv;
  T *dq, *dkv;
  PAGODA_GPU void operator()(int64_t t, int64_t column) const {
    const int64_t width = z.plain + z.value, h = quotient(column, width), i = column - h * width;
    if (i < z.plain) {
      dq[z.q(t, h) + i] = rounded<T>(z.query_scale * widen(dqkv[z.head(t, 0, h) + i]));
      dkv[z.kv(t, h) + i] = dqkv[z.head(t, 1, h) + i];
    } else {
      dkv[z.kv(t, h) + i] = dqkv[z.head(t, 2, h) + i - z.plain];
    }
  }
};

template <typename T>
struct CopyColumns {
  const T* x;
  int64_t columns, x_stride, out_stride;
  T* out;
  PAGODA_GPU void operator()(int64_t row, int64_t i) const {
    out[row * out_stride + i] = i < columns ? x[row * x_stride + i] : rounded<T>(0.0f);
  }
};

LatentSizes sizes_of(const LatentShape& shape, const int32_t* positions, const double* frequency,
                     double size) {
  return {shape.heads,      shape.plain,    shape.rotated,       shape.value,
          shape.head_dim(), shape.q_stride, shape.shared_stride, shape.neighbours,
          shape.query_scale, positions,     frequency,           size};
}

}  // namespace

void CudaOps::latent_heads(DType dt, const LatentShape& shape, const int32_t* positions,
                           const Rotation& rotation, const void* q, const void* shared,
                           const void* kv, void* qkv, Stream& s) {
  shape.check();
  const int64_t half = shape.rotated / 2;
  const std::vector<double> frequency = rope_frequencies(rotation, shape.rotated);
  Queue queue(s, "latent_heads");
  Temporary<double> table(queue, half);
  upload(queue, table.get(), frequency.data(), half);
  const LatentSizes z = sizes_of(shape, positions, table.get(), rotation.size);
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, shape.tokens, half,
                     TurnedHeads<T>{z, typed<T>(q), typed<T>(shared), typed<T>(qkv)});
    for_each_element(queue, shape.tokens, z.heads * z.dim,
                     PlainHeads<T>{z, typed<T>(q), typed<T>(kv), typed<T>(qkv)});
  });
}

void CudaOps::latent_heads_backward(DType dt, const LatentShape& shape, const int32_t* positions,
                                    const Rotation& rotation, const void* dqkv, void* dq,
                                    void* dshared, void* dkv, Stream& s) {
  shape.check();
  const int64_t half = shape.rotated / 2;
  const std::vector<double> frequency = rope_frequencies(rotation, shape.rotated);
  Queue queue(s, "latent_heads_backward");
  Temporary<double> table(queue, half);
  upload(queue, table.get(), frequency.data(), half);
  const LatentSizes z = sizes_of(shape, positions, table.get(), rotation.size);
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, shape.tokens, half,
                     TurnedHeadsBackward<T>{z, typed<T>(dqkv), typed<T>(dq), typed<T>(dshared)});
    for_each_element(queue, shape.tokens, z.heads * (z.plain + z.value),
                     PlainHeadsBackward<T>{z, typed<T>(dqkv), typed<T>(dq), typed<T>(dkv)});
  });
}

void CudaOps::copy_columns(DType dt, const void* x, int64_t n, int64_t columns, int64_t x_stride,
                           int64_t zeros, int64_t out_stride, void* out, Stream& s) {
  CHECK(n >= 0 && columns > 0 && zeros >= 0 && columns <= x_stride);
  CHECK(columns + zeros <= out_stride);
  Queue queue(s, "copy_columns");
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, n, columns + zeros,
                     CopyColumns<T>{typed<T>(x), columns, x_stride, out_stride, typed<T>(out)});
  });
}

}  // namespace pagoda::PAGODA_MACHINE
