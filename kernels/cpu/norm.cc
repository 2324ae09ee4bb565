// RMSNorm. With r = rstd, h = x r, g = dout w:
//   dx = r (g - h mean(g h))     dw = sum dout round(h)
#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vector.h"

namespace pagoda {
namespace {

PAGODA_TARGET_CLONES void multiply_row(const float* a, const float* b, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] * b[i];
}

PAGODA_TARGET_CLONES void add_product(const float* a, const float* b, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += a[i] * b[i];
}

// sum of dout w h
PAGODA_TARGET_CLONES float gradient_dot(const float* dout, const float* w, const float* h,
                                        int64_t n) {
  Vec sum{};
  for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    sum += load_lanes(dout + i, count) * load_lanes(w + i, count) * load_lanes(h + i, count);
  });
  return sum_lanes(sum);
}

PAGODA_TARGET_CLONES void input_gradient(const float* dout, const float* w, const float* h,
                                         float rstd, float mean, int64_t n, float* dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (dout[i] * w[i] - h[i] * mean);
}

}  // namespace

void CpuOps::rmsnorm(DType dt, const void* x, const void* weight, float eps, int64_t rows,
                     int64_t groups, int64_t dim, int64_t stride, void* out, float* rstd,
                     Stream& s) {
  CHECK(rows >= 0 && groups > 0 && dim > 0 && stride >= groups * dim);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, rows, rows_per_block(groups * dim), [&](int64_t begin, int64_t end) {
      const float* w = read_row(dt, weight, dim, Scratch::kRowA);
      for (int64_t i = begin * groups; i < end * groups; ++i) {
        const int64_t offset = i / groups * stride + i % groups * dim;
        const float* row = read_row(dt, at(dt, x, offset), dim, Scratch::kRowB);
        const float scale =
            1.0f / std::sqrt(dot(row, row, dim) / static_cast<float>(dim) + eps);
        rstd[i] = scale;
        float* result = row_to_write(dt, at(dt, out, offset), dim, Scratch::kRowC);
        scale_row(row, dim, scale, result);
        round_through(dt, result, dim);
        multiply_row(result, w, dim, result);
        write_row(dt, result, dim, at(dt, out, offset));
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
      const float* w = read_row(dt, weight, dim, Scratch::kRowA);
      float* sum = partial + block * dim;
      std::fill_n(sum, dim, 0.0f);
      for (int64_t i = begin * groups; i < end * groups; ++i) {
        const int64_t offset = i / groups * stride + i % groups * dim;
        const float* dy = read_row(dt, at(dt, dout, offset), dim, Scratch::kRowB);
        const float* row = read_row(dt, at(dt, x, offset), dim, Scratch::kRowC);
        float* h = scratch_floats(Scratch::kRowD, dim);
        scale_row(row, dim, rstd[i], h);
        const float mean = gradient_dot(dy, w, h, dim) / static_cast<float>(dim);
        float* result = scratch_floats(Scratch::kRowE, dim);
        input_gradient(dy, w, h, rstd[i], mean, dim, result);
        round_through(dt, h, dim);  // what the forward multiplied the weight with
        add_product(dy, h, dim, sum);
        write_row(dt, result, dim, at(dt, dx, offset));
      }
    });
    for (int64_t block = 0; block < blocks; ++block) {
      add_row(dweight, partial + block * dim, dim, dweight);
    }
  });
}

}  // namespace pagoda
