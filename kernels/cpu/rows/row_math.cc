#include "kernels/cpu/rows/row_math.h"

#include <limits>

#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {
constexpr float kLowest = -std::numeric_limits<float>::infinity();  // absent lanes: exp gives 0
}

PAGODA_TARGET_CLONES void widen(const bf16* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_float(x[i]);
}

PAGODA_TARGET_CLONES void round_to_bf16(const float* x, int64_t n, bf16* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_round(x[i]);
}

PAGODA_TARGET_CLONES float dot(const float* a, const float* b, int64_t n) {
  Vec sum{};
  for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    sum += load_lanes(a + i, count) * load_lanes(b + i, count);
  });
  return sum_lanes(sum);
}

PAGODA_TARGET_CLONES float max_of(const float* x, int64_t n) {
  Vec best = splat(kLowest);
  for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    const Vec v = load_lanes(x + i, count, kLowest);
    best = v > best ? v : best;
  });
  return max_lane(best);
}

PAGODA_TARGET_CLONES float exp_row(const float* x, int64_t n, float shift, float* out) {
  Vec sum{};
  for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    const Vec e = exp_lanes(load_lanes(x + i, count, kLowest) - shift);
    sum += e;
    store_lanes(out + i, e, count);
  });
  return sum_lanes(sum);
}

PAGODA_TARGET_CLONES float exp_sum(const float* x, int64_t n, float shift) {
  Vec sum{};
  for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    sum += exp_lanes(load_lanes(x + i, count, kLowest) - shift);
  });
  return sum_lanes(sum);
}

PAGODA_TARGET_CLONES void scale_row(const float* x, int64_t n, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale;
}

PAGODA_TARGET_CLONES void add_row(const float* a, const float* b, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

PAGODA_TARGET_CLONES void add_scaled_row(const float* x, int64_t n, float scale, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += scale * x[i];
}

PAGODA_TARGET_CLONES void add_rounded_row(DType dt, const float* x, int64_t n, float scale,
                                          float* y) {
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec added = scale * as_stored<T>(load_lanes(x + i, count));
      store_lanes(y + i, load_lanes(y + i, count) + added, count);
    });
  });
}

}  // namespace pagoda
