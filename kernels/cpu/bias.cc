// Gradient of a vector that was added to every row.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {

void CpuOps::bias_backward(DType dt, const void* dy, int64_t n, int64_t dim, float* dbias,
                           Stream& s) {
  CHECK(n >= 0 && dim > 0);
  s.enqueue([=, pool = &s.pool()] {
    const int64_t blocks = div_ceil(n, kRowBlock);
    float* partial = scratch_floats(Scratch::kSharedSums, blocks * dim);
    pool->parallel_for(blocks, [&](int64_t block) {
      const int64_t begin = block * kRowBlock, end = std::min(n, begin + kRowBlock);
      float* sum = partial + block * dim;
      std::fill_n(sum, dim, 0.0f);
      for (int64_t i = begin; i < end; ++i) {
        add_row(sum, read_row(dt, at(dt, dy, i * dim), dim, Scratch::kRowA), dim, sum);
      }
    });
    for (int64_t block = 0; block < blocks; ++block) {
      add_row(dbias, partial + block * dim, dim, dbias);
    }
  });
}

}  // namespace pagoda
