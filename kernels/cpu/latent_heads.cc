// Heads of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) from what a
// token was projected to, and back; and columns of matrices.
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

template <typename T>
T as_type(float v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else {
    return bf16_round(v);
  }
}

// Cosines and sines of a token's rotated pairs.
struct Turn {
  float *cosine, *sine;
  int64_t half;
  bool neighbours;

  void set(const std::vector<double>& frequency, double size, int32_t position) const {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = position * frequency[static_cast<size_t>(i)];
      cosine[i] = static_cast<float>(size * std::cos(angle));
      sine[i] = static_cast<float>(size * std::sin(angle));
    }
  }
  int64_t low(int64_t i) const { return neighbours ? 2 * i : i; }
  int64_t high(int64_t i) const { return neighbours ? 2 * i + 1 : half + i; }
};

// to = scale times from, rotated forward or back.
template <typename From>
void turn(const Turn& t, const From* from, bool inverse, float scale, float* to) {
  for (int64_t i = 0; i < t.half; ++i) {
    const float a = to_float(from[t.low(i)]), b = to_float(from[t.high(i)]);
    const float sine = inverse ? -t.sine[i] : t.sine[i];
    to[t.low(i)] = scale * (a * t.cosine[i] - b * sine);
    to[t.high(i)] = scale * (b * t.cosine[i] + a * sine);
  }
}

}  // namespace

void CpuOps::latent_heads(DType dt, const LatentShape& shape, const int32_t* positions,
                          const Rotation& rotation, const void* q, const void* shared,
                          const void* kv, void* qkv, Stream& s) {
  shape.check();
  s.enqueue([=, pool = &s.pool(), frequency = rope_frequencies(rotation, shape.rotated)] {
    const int64_t heads = shape.heads, plain = shape.plain, dim = shape.head_dim();
    const int64_t key = plain + shape.rotated, value = shape.value, row = 3 * heads * dim;
    with_type(dt, [&]<typename T>(T) {
      for_blocks(*pool, shape.tokens, rows_per_block(row), [&](int64_t begin, int64_t end) {
        float* angles = scratch_floats(Scratch::kRowA, shape.rotated);
        float* turned = scratch_floats(Scratch::kRowB, 2 * shape.rotated);
        float* turned_key = turned + shape.rotated;
        const Turn by{angles, angles + shape.rotated / 2, shape.rotated / 2, shape.neighbours};
        for (int64_t t = begin; t < end; ++t) {
          const T* from_q = static_cast<const T*>(q) + t * shape.q_stride;
          const T* from_kv = static_cast<const T*>(kv) + t * heads * (plain + value);
          T* to = static_cast<T*>(qkv) + t * row;
          by.set(frequency, rotation.size, positions[t]);
          turn(by, static_cast<const T*>(shared) + t * shape.shared_stride, false, 1.0f,
               turned_key);
          for (int64_t h = 0; h < heads; ++h, from_q += key, from_kv += plain + value) {
            T *to_q = to + h * dim, *to_k = to_q + heads * dim, *to_v = to_k + heads * dim;
            turn(by, from_q + plain, false, shape.query_scale, turned);
            for (int64_t i = 0; i < dim; ++i) {
              const float q_i = i < plain ? shape.query_scale * to_float(from_q[i])
                                          : i < key ? turned[i - plain] : 0.0f;
              const float k_i = i < plain ? to_float(from_kv[i])
                                          : i < key ? turned_key[i - plain] : 0.0f;
              to_q[i] = as_type<T>(q_i);
              to_k[i] = as_type<T>(k_i);
              to_v[i] = i < value ? from_kv[plain + i] : T{};
            }
          }
        }
      });
    });
  });
}

void CpuOps::latent_heads_backward(DType dt, const LatentShape& shape, const int32_t* positions,
                                   const Rotation& rotation, const void* dqkv, void* dq,
                                   void* dshared, void* dkv, Stream& s) {
  shape.check();
  s.enqueue([=, pool = &s.pool(), frequency = rope_frequencies(rotation, shape.rotated)] {
    const int64_t heads = shape.heads, plain = shape.plain, dim = shape.head_dim();
    const int64_t key = plain + shape.rotated, value = shape.value, row = 3 * heads * dim;
    with_type(dt, [&]<typename T>(T) {
      for_blocks(*pool, shape.tokens, rows_per_block(row), [&](int64_t begin, int64_t end) {
        float* angles = scratch_floats(Scratch::kRowA, shape.rotated);
        float* turned = scratch_floats(Scratch::kRowB, 2 * shape.rotated);
        float* sum = turned + shape.rotated;
        const Turn by{angles, angles + shape.rotated / 2, shape.rotated / 2, shape.neighbours};
        for (int64_t t = begin; t < end; ++t) {
          const T* from = static_cast<const T*>(dqkv) + t * row;
          T* to_q = static_cast<T*>(dq) + t * shape.q_stride;
          T* to_kv = static_cast<T*>(dkv) + t * heads * (plain + value);
          T* to_shared = static_cast<T*>(dshared) + t * shape.shared_stride;
          by.set(frequency, rotation.size, positions[t]);
          std::fill_n(sum, shape.rotated, 0.0f);
          for (int64_t h = 0; h < heads; ++h, to_q += key, to_kv += plain + value) {
            const T *from_q = from + h * dim, *from_k = from_q + heads * dim;
            const T* from_v = from_k + heads * dim;
            turn(by, from_q + plain, true, shape.query_scale, turned);
            for (int64_t i = 0; i < plain; ++i) {
              to_q[i] = as_type<T>(shape.query_scale * to_float(from_q[i]));
              to_kv[i] = from_k[i];
            }
            for (int64_t i = 0; i < shape.rotated; ++i) {
              to_q[plain + i] = as_type<T>(turned[i]);
              sum[i] += to_float(from_k[plain + i]);
            }
            for (int64_t i = 0; i < value; ++i) to_kv[plain + i] = from_v[i];
          }
          turn(by, sum, true, 1.0f, turned);
          for (int64_t i = 0; i < shape.rotated; ++i) to_shared[i] = as_type<T>(turned[i]);
        }
      });
    });
  });
}

void CpuOps::copy_columns(DType dt, const void* x, int64_t n, int64_t columns, int64_t x_stride,
                          int64_t zeros, int64_t out_stride, void* out, Stream& s) {
  CHECK(n >= 0 && columns > 0 && zeros >= 0 && columns <= x_stride);
  CHECK(columns + zeros <= out_stride);
  s.enqueue([=, pool = &s.pool()] {
    const auto row = static_cast<size_t>(columns * dtype_bytes(dt));
    const auto rest = static_cast<size_t>(zeros * dtype_bytes(dt));
    for_blocks(*pool, n, rows_per_block(columns + zeros), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        void* to = at(dt, out, t * out_stride);
        std::memcpy(to, at(dt, x, t * x_stride), row);
        if (rest > 0) std::memset(static_cast<std::byte*>(to) + row, 0, rest);
      }
    });
  });
}

}  // namespace pagoda
