// Rows of several experts: here a call for each, one after the other.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {
void CpuOps::grouped_linear(DType dt, const void* x, std::span<const RowsOfWeight> experts,
                            int64_t in, int64_t out, DType y_dt, void* y, Stream& s) {
  CHECK(std::ssize(experts) <= kMostTogether);
  for (const RowsOfWeight& e : experts) {
    const void* rows = at(dt, x, e.first * in);
    void* results = at(y_dt, y, e.first * out);
    if (e.bias == nullptr) {
      linear(dt, rows, e.w, e.count, in, out, y_dt, results, s);
    } else {
      linear_biased(dt, rows, e.w, e.bias, e.count, in, out, y_dt, results, s);
    }
  }
}

void CpuOps::grouped_linear_backward_input(DType dt, const void* dy,
                                           std::span<const RowsOfWeight> experts, int64_t in,
                                           int64_t out, DType dx_dt, void* dx, Stream& s) {
  CHECK(std::ssize(experts) <= kMostTogether);
  for (const RowsOfWeight& e : experts) {
    linear_backward_input(dt, at(dt, dy, e.first * out), e.w, e.count, in, out, dx_dt,
                          at(dx_dt, dx, e.first * in), s);
  }
}

void CpuOps::grouped_linear_backward_weight(DType dt, const void* dy, const void* x,
                                            std::span<const RowsOfGradient> experts, int64_t in,
                                            int64_t out, Stream& s) {
  CHECK(std::ssize(experts) <= kMostTogether);
  for (const RowsOfGradient& e : experts) {
    linear_backward_weight(dt, at(dt, dy, e.first * out), at(dt, x, e.first * in), e.count, in, out,
                           e.add, e.dw, s);
  }
}

void CpuOps::gather_row_runs(DType dt, const void* x, const int32_t* rows,
                             std::span<const RowRun> runs, int64_t dim, void* out, Stream& s) {
  CHECK(std::ssize(runs) <= kMostTogether);
  for (const RowRun& run : runs) {
    gather_rows(dt, x, rows + run.from, run.count, dim, at(dt, out, run.to * dim), s);
  }
}

void CpuOps::copy_row_runs(DType dt, const void* x, std::span<const RowRun> runs, int64_t dim,
                           void* out, Stream& s) {
  CHECK(std::ssize(runs) <= kMostTogether && dim > 0);
  for (const RowRun& run : runs) {
    s.copy(at(dt, out, run.to * dim), at(dt, x, run.from * dim),
           run.count * dim * dtype_bytes(dt));
  }
}

void CpuOps::scatter_add_row_runs(DType dt, const void* x, const int32_t* rows, const float* scale,
                                  std::span<const RowRun> runs, int64_t dim, float* y, Stream& s) {
  CHECK(std::ssize(runs) <= kMostTogether);
  for (const RowRun& run : runs) {
    scatter_add_rows(dt, at(dt, x, run.to * dim), rows + run.from,
                     scale != nullptr ? scale + run.to : nullptr, run.count, dim, y, s);
  }
}

}  // namespace pagoda
