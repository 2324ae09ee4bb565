// The end of a gradient: rounded to the type it is stored in, and measured.
#include <vector>

#include "base/target_clones.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/cpu_ops.h"

namespace pagoda {
namespace {

constexpr int64_t kPiece = 4096;  // part of the arithmetic: sums of pieces are joined in order

// In double: the square of any fp32 is finite and the sum loses nothing that matters.
PAGODA_TARGET_CLONES double square_sum(const float* x, int64_t n) {
  constexpr int64_t kParts = 8;
  double sum[kParts] = {};
  int64_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (int64_t j = 0; j < kParts; ++j) {
      const double v = x[i + j];
      sum[j] += v * v;
    }
  }
  for (; i < n; ++i) sum[i % kParts] += static_cast<double>(x[i]) * x[i];
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

}  // namespace

void CpuOps::finish_gradient(DType dt, const float* g, int64_t n, void* out,
                             double* sum_of_squares, Stream& s) {
  CHECK(n >= 0);
  s.enqueue([=, pool = &s.pool()] {
    std::vector<double> sums(static_cast<size_t>(div_ceil(n, kPiece)));
    for_blocks(*pool, n, 16 * kPiece, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kPiece) {
        const int64_t count = std::min(kPiece, end - i);
        float* row = scratch_floats(Scratch::kRowA, count);
        std::memcpy(row, g + i, static_cast<size_t>(count) * sizeof(float));
        round_through(dt, row, count);
        sums[static_cast<size_t>(i / kPiece)] = square_sum(row, count);
        write_row(dt, row, count, at(dt, out, i));
      }
    });
    double total = 0.0;
    for (double sum : sums) total += sum;
    *sum_of_squares = total;
  });
}

}  // namespace pagoda
