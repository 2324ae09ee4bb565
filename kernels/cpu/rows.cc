// Rows moved, summed and cleared.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

// y += scale * x
PAGODA_TARGET_CLONES void add_scaled(DType dt, const void* x, int64_t n, float scale, float* y) {
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec added = scale * load_lanes(static_cast<const T*>(x) + i, count);
      store_lanes(y + i, load_lanes(y + i, count) + added, count);
    });
  });
}

PAGODA_TARGET_CLONES void add_rounded(DType dt, const void* a, DType b_dt, const void* b, int64_t n,
                                      void* out) {
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    with_type(b_dt, [&]<typename B>(B) PAGODA_INLINE_LAMBDA {
      for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
        const Vec left = load_lanes(static_cast<const T*>(a) + i, count);
        store_lanes(static_cast<T*>(out) + i,
                    left + load_lanes(static_cast<const B*>(b) + i, count), count);
      });
    });
  });
}

}  // namespace

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
        add_scaled(dt, at(dt, x, i * dim), dim, scale ? scale[i] : 1.0f, y + rows[i] * dim);
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

void CpuOps::scale(DType dt, float factor, int64_t n, void* x, Stream& s) {
  CHECK(n >= 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, kBlockElements, [&](int64_t begin, int64_t end) {
      void* block = at(dt, x, begin);
      const float* values = read_row(dt, block, end - begin, Scratch::kRowA);
      float* scaled = row_to_write(dt, block, end - begin, Scratch::kRowA);
      scale_row(values, end - begin, factor, scaled);
      write_row(dt, scaled, end - begin, block);
    });
  });
}

void CpuOps::add(DType dt, const void* a, DType b_dt, const void* b, int64_t n, void* out,
                 Stream& s) {
  CHECK(n >= 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, kBlockElements, [&](int64_t begin, int64_t end) {
      add_rounded(dt, at(dt, a, begin), b_dt, at(b_dt, b, begin), end - begin,
                  at(dt, out, begin));
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
