// Runs of rows: here a call for each, one after the other.
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {
void CpuOps::gather_row_runs(DType dt, const void* x, const int32_t* rows,
                             std::span<const RowRun> runs, int64_t dim, void* out, Stream& s) {
  for (const RowRun& run : runs) {
    gather_rows(dt, x, rows + run.from, run.count, dim, at(dt, out, run.to * dim), s);
  }
}

void CpuOps::locate_rows(DType dt, const void* x, const int32_t* rows, std::span<const RowRun> runs,
                         int64_t dim, const void** out, Stream& s) {
  CHECK(dim > 0);
  s.enqueue([=, all = std::vector<RowRun>(runs.begin(), runs.end())] {
    for (const RowRun& run : all) {
      for (int64_t i = 0; i < run.count; ++i) {
        const int64_t row = rows != nullptr ? rows[run.from + i] : run.from + i;
        out[run.to + i] = at(dt, x, row * dim);
      }
    }
  });
}

void CpuOps::copy_row_runs(DType dt, const void* x, std::span<const RowRun> runs, int64_t dim,
                           void* out, Stream& s) {
  CHECK(dim > 0);
  for (const RowRun& run : runs) {
    s.copy(at(dt, out, run.to * dim), at(dt, x, run.from * dim),
           run.count * dim * dtype_bytes(dt));
  }
}

void CpuOps::scatter_add_row_runs(DType dt, const void* x, const int32_t* rows, const float* scale,
                                  std::span<const RowRun> runs, int64_t dim, float* y, Stream& s) {
  for (const RowRun& run : runs) {
    scatter_add_rows(dt, at(dt, x, run.to * dim), rows + run.from,
                     scale != nullptr ? scale + run.to : nullptr, run.count, dim, y, s);
  }
}

}  // namespace pagoda
