// RMSNorm. With r = rstd, h = x r, g = dout w:
//   dx = r (g - h mean(g h))     dw = sum dout round(h)
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

PAGODA_TARGET_CLONES float square_sum(DType dt, const void* x, int64_t n) {
  Vec sum{};
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec v = load_lanes(static_cast<const T*>(x) + i, count);
      sum += v * v;
    });
  });
  return sum_lanes(sum);
}

// out = round(x rstd) w
PAGODA_TARGET_CLONES void normalise(DType dt, const void* x, const void* w, float rstd, int64_t n,
                                    void* out) {
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec h = as_stored<T>(load_lanes(static_cast<const T*>(x) + i, count) * rstd);
      store_lanes(static_cast<T*>(out) + i, h * load_lanes(static_cast<const T*>(w) + i, count),
                  count);
    });
  });
}

struct GradientRow {
  DType dt;
  const void *x, *w, *dout;
  float rstd;
  int64_t n;
  void* dx;
  float* dw;  // added to
};

// sum of dout w h
PAGODA_TARGET_CLONES float gradient_dot(const GradientRow& row) {
  Vec sum{};
  with_type(row.dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    for_lanes(row.n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec h = load_lanes(static_cast<const T*>(row.x) + i, count) * row.rstd;
      sum += load_lanes(static_cast<const T*>(row.dout) + i, count) *
             load_lanes(static_cast<const T*>(row.w) + i, count) * h;
    });
  });
  return sum_lanes(sum);
}

PAGODA_TARGET_CLONES void add_gradient(const GradientRow& row, float mean) {
  with_type(row.dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    for_lanes(row.n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec h = load_lanes(static_cast<const T*>(row.x) + i, count) * row.rstd;
      const Vec dout = load_lanes(static_cast<const T*>(row.dout) + i, count);
      const Vec w = load_lanes(static_cast<const T*>(row.w) + i, count);
      store_lanes(static_cast<T*>(row.dx) + i, row.rstd * (dout * w - h * mean), count);
      // The forward multiplied the weight with what was rounded.
      store_lanes(row.dw + i, load_lanes(row.dw + i, count) + dout * as_stored<T>(h), count);
    });
  });
}

}  // namespace

void CpuOps::rmsnorm(DType dt, const void* x, const void* weight, float eps, int64_t rows,
                     int64_t groups, int64_t dim, int64_t stride, void* out, float* rstd,
                     Stream& s) {
  CHECK(rows >= 0 && groups > 0 && dim > 0 && stride >= groups * dim);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, rows, rows_per_block(groups * dim), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * groups; i < end * groups; ++i) {
        const int64_t offset = i / groups * stride + i % groups * dim;
        const void* row = at(dt, x, offset);
        const float scale =
            1.0f / std::sqrt(square_sum(dt, row, dim) / static_cast<float>(dim) + eps);
        rstd[i] = scale;
        normalise(dt, row, weight, scale, dim, at(dt, out, offset));
      }
    });
  });
}

void CpuOps::rmsnorm_backward(DType dt, const void* x, const void* weight, const float* rstd,
                              const void* dout, int64_t rows, int64_t groups, int64_t dim,
                              int64_t stride, void* dx, float* dweight, Stream& s) {
  CHECK(rows >= 0 && groups > 0 && dim > 0 && stride >= groups * dim);
  s.enqueue([=, pool = &s.pool()] {
    const int64_t blocks = div_ceil(rows, kRowBlock);
    float* partial = scratch_floats(Scratch::kSharedSums, blocks * dim);
    pool->parallel_for(blocks, [&](int64_t block) {
      const int64_t begin = block * kRowBlock, end = std::min(rows, begin + kRowBlock);
      float* sum = partial + block * dim;
      std::fill_n(sum, dim, 0.0f);
      for (int64_t i = begin * groups; i < end * groups; ++i) {
        const int64_t offset = i / groups * stride + i % groups * dim;
        const GradientRow row{dt,  at(dt, x, offset),  weight, at(dt, dout, offset), rstd[i],
                              dim, at(dt, dx, offset), sum};
        add_gradient(row, gradient_dot(row) / static_cast<float>(dim));
      }
    });
    for (int64_t block = 0; block < blocks; ++block) {
      add_row(dweight, partial + block * dim, dim, dweight);
    }
  });
}

}  // namespace pagoda
