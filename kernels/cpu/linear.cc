// Multiplications of activations and weights: by blocks (products.h), or tile by tile with gemm.h.
// Rows of several experts are a product for each, one after the other.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/products.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {
namespace {

// Tiles are tall if there are enough columns for every thread, since each tile packs its columns
// anew.
int64_t tile_rows(int64_t n) { return n >= 8 * kGemmCols ? kSlabRows : 2 * kGemmRows; }

// Rows [row0, row0 + m) and depth [depth0, depth0 + k) of A in chunks of kGemmRows dense rows. Rows
// are used where they lie when they are dense; others are copied, and the last, partial chunk is
// padded with zeros.
class LeftRows {
 public:
  LeftRows(const Product& p, int64_t row0, int64_t m, int64_t depth0, int64_t k)
      : dt_(p.dt), k_(k) {
    const int64_t whole_bytes = p.k * dtype_bytes(dt_);
    const InputRows rows = p.a.from(row0, whole_bytes);
    dense_ = static_cast<const std::byte*>(rows.dense);
    direct_rows_ = k == p.k && dense_ != nullptr ? m / kGemmRows * kGemmRows : 0;
    const int64_t copied = m - direct_rows_;
    if (copied == 0) return;
    const int64_t row_bytes = k * dtype_bytes(dt_);
    copy_ = scratch_bytes(Scratch::kSharedLeft, align_up(copied, kGemmRows) * row_bytes);
    for (int64_t r = 0; r < copied; ++r) {
      std::memcpy(copy_ + r * row_bytes, at(dt_, rows.row(direct_rows_ + r, whole_bytes), depth0),
                  static_cast<size_t>(row_bytes));
    }
    std::memset(copy_ + copied * row_bytes, 0,
                static_cast<size_t>((align_up(copied, kGemmRows) - copied) * row_bytes));
  }
  // REQUIRES: row is a multiple of kGemmRows.
  const void* chunk(int64_t row) const {
    if (row < direct_rows_) return dense_ + row * k_ * dtype_bytes(dt_);
    return copy_ + (row - direct_rows_) * k_ * dtype_bytes(dt_);
  }

 private:
  DType dt_;
  int64_t k_;
  const std::byte* dense_;
  int64_t direct_rows_ = 0;
  std::byte* copy_ = nullptr;
};

// One tile: `rows` rows of A times the packed B into sums (rows rounded up to kGemmRows, n).
void multiply_tile(DType dt, const LeftRows& left, int64_t row, int64_t rows, int64_t n, int64_t k,
                   const void* packed, float* sums, bool accumulate) {
  for (int64_t r = 0; r < rows; r += kGemmRows) {
    gemm_multiply(dt, std::min(kGemmRows, rows - r), n, k, left.chunk(row + r), packed,
                  sums + r * n, accumulate);
  }
}

void store_tile(const Product& p, float* sums, int64_t row, int64_t rows, int64_t col, int64_t n) {
  const float* bias = nullptr;
  if (p.bias != nullptr) bias = read_row(p.dt, at(p.dt, p.bias, col), n, Scratch::kRowA);
  for (int64_t r = 0; r < rows; ++r) {
    float* values = sums + r * n;
    if (bias != nullptr) add_row(values, bias, n, values);
    if (p.c.sums != nullptr) {
      add_rounded_row(p.c_dt, values, n, p.c.scale_of(row + r), p.c.sum(row + r) + col);
    } else {
      write_row(p.c_dt, values, n, at(p.c_dt, p.c.dense, (row + r) * p.n + col));
    }
  }
}

// Rows [row0, row0 + m) by columns [col0, col0 + n): depth panels one after the other, the tiles of
// a panel in parallel.
void multiply_slab(const Product& p, int64_t row0, int64_t m, int64_t col0, int64_t n,
                   ThreadPool& pool) {
  const int64_t height = tile_rows(p.n);
  const int64_t row_tiles = div_ceil(m, height), col_tiles = div_ceil(n, kGemmCols);
  const bool one_panel = p.k <= kGemmDepth;
  float* shared = one_panel ? nullptr
                            : scratch_floats(Scratch::kSharedSums,
                                             row_tiles * height * col_tiles * kGemmCols);
  for (int64_t depth = 0; depth < p.k; depth += kGemmDepth) {
    const int64_t k = std::min(kGemmDepth, p.k - depth);
    const LeftRows left(p, row0, m, depth, k);
    pool.parallel_for(row_tiles * col_tiles, [&](int64_t tile) {
      const int64_t row = tile % row_tiles * height, rows = std::min(height, m - row);
      const int64_t col = tile / row_tiles * kGemmCols, cols = std::min(kGemmCols, n - col);
      const int64_t corner = p.transposed ? (col0 + col) * p.ldb + depth
                                          : depth * p.ldb + col0 + col;
      std::byte* packed = scratch_bytes(Scratch::kPacked, gemm_packed_bytes(p.dt, k, cols));
      gemm_pack(p.dt, at(p.dt, p.b, corner), p.ldb, p.transposed, k, cols, packed);
      float* sums = one_panel ? scratch_floats(Scratch::kTile, height * kGemmCols)
                              : shared + tile * height * kGemmCols;
      multiply_tile(p.dt, left, row, rows, cols, k, packed, sums, depth > 0);
      if (depth + k == p.k) store_tile(p, sums, row0 + row, rows, col0 + col, cols);
    });
  }
}

void multiply(const Product& p, ThreadPool& pool) {
  CHECK(p.m >= 0 && p.n > 0 && p.k > 0, "product of %lld x %lld x %lld",
        static_cast<long long>(p.m), static_cast<long long>(p.n), static_cast<long long>(p.k));
  if (const BlockKernel* kernel = product_kernel(p)) return multiply_blocks(*kernel, p, pool);
  const bool one_panel = p.k <= kGemmDepth;
  // Rows that are copied are so many at a time.
  const bool all_rows = one_panel && p.a.each == nullptr;
  const int64_t slab_rows = all_rows ? std::max<int64_t>(p.m, 1) : kSlabRows;
  const int64_t slab_cols = one_panel ? p.n : kSlabCols;
  for (int64_t row = 0; row < p.m; row += slab_rows) {
    for (int64_t col = 0; col < p.n; col += slab_cols) {
      multiply_slab(p, row, std::min(slab_rows, p.m - row), col, std::min(slab_cols, p.n - col),
                    pool);
    }
  }
}

// ---- weight gradients: dw (out, in) += dy^T x over one block of rows ----

// Rows are padded with zeros to one of few depths: each depth is a kernel to generate.
int64_t padded_depth(int64_t rows) {
  int64_t depth = 32;
  while (depth < rows) depth *= 2;
  return std::min(depth, kRowBlock);
}

// Columns [col, col + cols) of dy, transposed: (cols rounded up to kGemmRows, depth).
template <typename T>
void transpose_block(const WeightGradient& g, int64_t col, int64_t cols, int64_t depth, T* out) {
  std::memset(static_cast<void*>(out), 0,
              static_cast<size_t>(align_up(cols, kGemmRows) * depth) * sizeof(T));
  constexpr int64_t kTogether = 16;
  for (int64_t r0 = 0; r0 < g.rows; r0 += kTogether) {
    const int64_t count = std::min(kTogether, g.rows - r0);
    const T* rows[kTogether];
    for (int64_t i = 0; i < count; ++i) {
      rows[i] = static_cast<const T*>(g.dy.row(r0 + i, g.out * int64_t{sizeof(T)})) + col;
    }
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t i = 0; i < count; ++i) out[c * depth + r0 + i] = rows[i][c];
    }
  }
}

void transpose(const WeightGradient& g, int64_t col, int64_t cols, int64_t depth, void* out) {
  if (g.dt == DType::kF32) {
    transpose_block(g, col, cols, depth, static_cast<float*>(out));
  } else {
    transpose_block(g, col, cols, depth, static_cast<bf16*>(out));
  }
}

// Packs columns [col, col + cols) of x as B (depth, cols), rows beyond the block zero.
void pack_input(const WeightGradient& g, int64_t col, int64_t cols, int64_t depth, void* packed) {
  const void* from = g.x.each == nullptr ? at(g.dt, g.x.dense, col) : nullptr;
  int64_t ld = g.in;
  if (depth > g.rows || from == nullptr) {
    const int64_t row_bytes = cols * dtype_bytes(g.dt);
    std::byte* padded = scratch_bytes(Scratch::kTile, depth * row_bytes);
    std::memset(padded, 0, static_cast<size_t>(depth * row_bytes));
    for (int64_t r = 0; r < g.rows; ++r) {
      const void* row = g.x.row(r, g.in * dtype_bytes(g.dt));
      std::memcpy(padded + r * row_bytes, at(g.dt, row, col), static_cast<size_t>(row_bytes));
    }
    from = padded;
    ld = cols;
  }
  gemm_pack(g.dt, from, ld, false, depth, cols, packed);
}

// dw of rows [row, row + rows) and columns [col, col + cols), from transposed dy and packed x.
void add_weight_tile(const WeightGradient& g, int64_t row, int64_t rows, int64_t col, int64_t cols,
                     int64_t depth, const void* left, const void* packed) {
  float* sums = scratch_floats(Scratch::kTile, kGemmRows * cols);
  for (int64_t r = 0; r < rows; r += kGemmRows) {
    const int64_t m = std::min(kGemmRows, rows - r);
    gemm_multiply(g.dt, m, cols, depth, at(g.dt, left, r * depth), packed, sums, false);
    for (int64_t i = 0; i < m; ++i) {
      float* target = g.dw + (row + r + i) * g.in + col;
      add_row(target, sums + i * cols, cols, target);
    }
  }
}

// Rows [out0, out0 + outs) of dw: both operands are prepared once, then shared by all tiles.
void add_weight_slab(const WeightGradient& g, int64_t out0, int64_t outs, ThreadPool& pool) {
  const int64_t depth = padded_depth(g.rows), height = 4 * kGemmRows;
  const int64_t row_tiles = div_ceil(outs, height), col_tiles = div_ceil(g.in, kGemmCols);
  const int64_t packed_bytes = gemm_packed_bytes(g.dt, depth, kGemmCols);
  std::byte* left = scratch_bytes(Scratch::kSharedLeft,
                                  row_tiles * height * depth * dtype_bytes(g.dt));
  std::byte* packed = scratch_bytes(Scratch::kSharedPacked, col_tiles * packed_bytes);
  pool.parallel_for(row_tiles + col_tiles, [&](int64_t i) {
    if (i < row_tiles) {
      const int64_t row = i * height;
      transpose(g, out0 + row, std::min(height, outs - row), depth, at(g.dt, left, row * depth));
    } else {
      const int64_t tile = i - row_tiles, col = tile * kGemmCols;
      pack_input(g, col, std::min(kGemmCols, g.in - col), depth, packed + tile * packed_bytes);
    }
  });
  pool.parallel_for(row_tiles * col_tiles, [&](int64_t i) {
    const int64_t row = i / col_tiles * height, tile = i % col_tiles, col = tile * kGemmCols;
    add_weight_tile(g, out0 + row, std::min(height, outs - row), col,
                    std::min(kGemmCols, g.in - col), depth, at(g.dt, left, row * depth),
                    packed + tile * packed_bytes);
  });
}

void zero(float* x, int64_t n, ThreadPool& pool) {
  for_blocks(pool, n, 16 * kBlockElements, [&](int64_t begin, int64_t end) {
    std::memset(x + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
  });
}

void enqueue(const Product& p, Stream& s) {
  s.enqueue([p, pool = &s.pool()] { multiply(p, *pool); });
}

// dw = or += dy^T x over the expert's rows.
void enqueue_gradient(DType dt, InputRows dy, InputRows x, const RowsOfGradient& e, int64_t in,
                      int64_t out, Stream& s) {
  CHECK(e.count >= 0 && in > 0 && out > 0);
  s.enqueue([=, pool = &s.pool()] {
    const BlockKernel* kernel = gradient_kernel(dt);
    const int64_t element = dtype_bytes(dt);
    if (!e.add && (kernel == nullptr || e.count == 0)) zero(e.dw, out * in, *pool);
    for (int64_t row = 0; row < e.count; row += kRowBlock) {
      const WeightGradient g{dt,
                             dy.from(e.first + row, out * element),
                             x.from(e.first + row, in * element),
                             std::min(kRowBlock, e.count - row),
                             in,
                             out,
                             e.dw,
                             e.add || row > 0};
      if (kernel != nullptr) {
        add_gradient_blocks(*kernel, g, *pool);
        continue;
      }
      for (int64_t out0 = 0; out0 < out; out0 += kSlabCols) {
        add_weight_slab(g, out0, std::min(kSlabCols, out - out0), *pool);
      }
    }
  });
}

}  // namespace

void CpuOps::linear(DType dt, const void* x, const void* w, int64_t n, int64_t in, int64_t out,
                    DType y_dt, void* y, Stream& s) {
  enqueue({dt, x, w, in, true, n, out, in, y_dt, y}, s);
}

void CpuOps::linear_biased(DType dt, const void* x, const void* w, const void* bias, int64_t n,
                           int64_t in, int64_t out, DType y_dt, void* y, Stream& s) {
  enqueue({dt, x, w, in, true, n, out, in, y_dt, y, bias}, s);
}

void CpuOps::linear_backward_input(DType dt, const void* dy, const void* w, int64_t n, int64_t in,
                                   int64_t out, DType dx_dt, void* dx, Stream& s) {
  enqueue({dt, dy, w, in, false, n, in, out, dx_dt, dx}, s);
}

void CpuOps::linear_backward_weight(DType dt, const void* dy, const void* x, int64_t n, int64_t in,
                                    int64_t out, bool add, float* dw, Stream& s) {
  enqueue_gradient(dt, dy, x, {0, n, dw, add}, in, out, s);
}

void CpuOps::grouped_linear(DType dt, InputRows x, std::span<const RowsOfWeight> experts,
                            int64_t in, int64_t out, DType y_dt, OutputRows y, Stream& s) {
  for (const RowsOfWeight& e : experts) {
    const InputRows rows = x.from(e.first, in * dtype_bytes(dt));
    const OutputRows results = y.from(e.first, out * dtype_bytes(y_dt));
    enqueue({dt, rows, e.w, in, true, e.count, out, in, y_dt, results, e.bias}, s);
  }
}

void CpuOps::grouped_linear_backward_input(DType dt, InputRows dy,
                                           std::span<const RowsOfWeight> experts, int64_t in,
                                           int64_t out, DType dx_dt, OutputRows dx, Stream& s) {
  for (const RowsOfWeight& e : experts) {
    const InputRows rows = dy.from(e.first, out * dtype_bytes(dt));
    const OutputRows results = dx.from(e.first, in * dtype_bytes(dx_dt));
    enqueue({dt, rows, e.w, in, false, e.count, in, out, dx_dt, results}, s);
  }
}

void CpuOps::grouped_linear_backward_weight(DType dt, InputRows dy, InputRows x,
                                            std::span<const RowsOfGradient> experts, int64_t in,
                                            int64_t out, Stream& s) {
  for (const RowsOfGradient& e : experts) enqueue_gradient(dt, dy, x, e, in, out, s);
}

}  // namespace pagoda
