// Gradients of vectors that were added to every row.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {

namespace {

// Rows [0, n) of dy; scale: of each row, or none.
void add_rows(DType dt, InputRows dy, const float* scale, int64_t n, int64_t dim, float* dbias,
              ThreadPool& pool) {
  const int64_t blocks = div_ceil(n, kRowBlock);
  float* partial = scratch_floats(Scratch::kSharedSums, blocks * dim);
  pool.parallel_for(blocks, [&](int64_t block) {
    const int64_t begin = block * kRowBlock, end = std::min(n, begin + kRowBlock);
    float* sum = partial + block * dim;
    std::fill_n(sum, dim, 0.0f);
    for (int64_t i = begin; i < end; ++i) {
      const float* row = read_row(dt, dy.row(i, dim * dtype_bytes(dt)), dim, Scratch::kRowA);
      if (scale == nullptr) {
        add_row(sum, row, dim, sum);
      } else {
        add_scaled_row(row, dim, scale[i], sum);
      }
    }
  });
  for (int64_t block = 0; block < blocks; ++block) {
    add_row(dbias, partial + block * dim, dim, dbias);
  }
}

}  // namespace

void CpuOps::bias_backward(DType dt, const void* dy, int64_t n, int64_t dim, float* dbias,
                           Stream& s) {
  CHECK(n >= 0 && dim > 0);
  s.enqueue([=, pool = &s.pool()] { add_rows(dt, dy, nullptr, n, dim, dbias, *pool); });
}

void CpuOps::grouped_bias_backward(DType dt, InputRows dy, const float* scale,
                                   std::span<const RowsOfGradient> experts, int64_t dim,
                                   Stream& s) {
  CHECK(dim > 0);
  for (const RowsOfGradient& e : experts) {
    if (!e.add) fill_zero(e.dw, dim * int64_t{sizeof(float)}, s);
    s.enqueue([=, pool = &s.pool()] {
      add_rows(dt, dy.from(e.first, dim * dtype_bytes(dt)),
               scale != nullptr ? scale + e.first : nullptr, e.count, dim, e.dw, *pool);
    });
  }
}

}  // namespace pagoda
