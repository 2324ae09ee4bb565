// Rotary position embedding (Su et al. 2021), half-split pairs.
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

PAGODA_TARGET_CLONES void rotate(DType dt, const float* cosine, const float* sine, int64_t half,
                                 void* x) {
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    T* low = static_cast<T*>(x);
    for_lanes(half, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec a = load_lanes(low + i, count), b = load_lanes(low + half + i, count);
      const Vec c = load_lanes(cosine + i, count), s = load_lanes(sine + i, count);
      store_lanes(low + i, a * c - b * s, count);
      store_lanes(low + half + i, b * c + a * s, count);
    });
  });
}

}  // namespace

void CpuOps::rope(DType dt, const int32_t* positions, const Rotation& rotation, int64_t tokens,
                  int64_t heads, int64_t head_dim, int64_t rotated, int64_t stride, bool inverse,
                  void* x, Stream& s) {
  CHECK(tokens >= 0 && heads > 0 && rotated > 0 && rotated % 2 == 0);
  CHECK(rotated <= head_dim && stride >= heads * head_dim);
  const int64_t half = rotated / 2;
  const double size = rotation.size;
  s.enqueue([=, pool = &s.pool(), frequency = rope_frequencies(rotation, rotated)] {
    for_blocks(*pool, tokens, rows_per_block(heads * head_dim), [&](int64_t begin, int64_t end) {
      float* cosine = scratch_floats(Scratch::kRowA, half);
      float* sine = scratch_floats(Scratch::kRowB, half);
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle = positions[t] * frequency[static_cast<size_t>(i)];
          cosine[i] = static_cast<float>(size * std::cos(angle));
          sine[i] = static_cast<float>(size * (inverse ? -std::sin(angle) : std::sin(angle)));
        }
        for (int64_t head = 0; head < heads; ++head) {
          rotate(dt, cosine, sine, half, at(dt, x, t * stride + head * head_dim));
        }
      }
    });
  });
}

}  // namespace pagoda
