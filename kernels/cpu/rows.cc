// Rows moved, summed and cleared.
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/cpu_ops.h"

namespace pagoda {

void CpuOps::gather_rows(DType dt, const void* x, const int32_t* rows, int64_t n, int64_t dim,
                         void* out, Stream& s) {
  CHECK(n >= 0 && dim > 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, rows_per_block(dim), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(at(dt, out, i * dim), at(dt, x, rows[i] * dim),
                    static_cast<size_t>(dim * dtype_bytes(dt)));
      }
    });
  });
}

void CpuOps::scatter_add_rows(DType dt, const void* x, const int32_t* rows, const float* scale,
                              int64_t n, int64_t dim, float* y, Stream& s) {
  CHECK(n >= 0 && dim > 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, rows_per_block(dim), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float* row = read_row(dt, at(dt, x, i * dim), dim, Scratch::kRowA);
        float* target = y + rows[i] * dim;
        add_scaled_row(row, dim, scale ? scale[i] : 1.0f, target);
      }
    });
  });
}

void CpuOps::scale_rows(const float* scale, int64_t n, int64_t dim, float* x, Stream& s) {
  CHECK(n >= 0 && dim > 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, rows_per_block(dim), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) scale_row(x + i * dim, dim, scale[i], x + i * dim);
    });
  });
}

void CpuOps::add(DType dt, const void* a, DType b_dt, const void* b, int64_t n, void* out,
                 Stream& s) {
  CHECK(n >= 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, kBlockElements, [&](int64_t begin, int64_t end) {
      constexpr int64_t kPiece = 1024;  // stays in the L1 cache
      for (int64_t i = begin; i < end; i += kPiece) {
        const int64_t count = std::min(kPiece, end - i);
        const float* left = read_row(dt, at(dt, a, i), count, Scratch::kRowA);
        const float* right = read_row(b_dt, at(b_dt, b, i), count, Scratch::kRowB);
        float* sum = row_to_write(dt, at(dt, out, i), count, Scratch::kRowC);
        add_row(left, right, count, sum);
        write_row(dt, sum, count, at(dt, out, i));
      }
    });
  });
}

void CpuOps::fill_zero(void* x, int64_t bytes, Stream& s) {
  CHECK(bytes >= 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, bytes, kMiB, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<std::byte*>(x) + begin, 0, static_cast<size_t>(end - begin));
    });
  });
}

}  // namespace pagoda
