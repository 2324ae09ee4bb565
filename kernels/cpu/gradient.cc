// The end of a gradient: rounded to the type it is stored in, and measured.
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

constexpr int64_t kPiece = 4096;  // part of the arithmetic: sums of pieces are joined in order

constexpr int64_t kParts = 8;  // interleaved sums of a piece
using Parts = double __attribute__((vector_size(kParts * 8)));
using Eight = float __attribute__((vector_size(kParts * 4)));

PAGODA_INLINE void add_squares(const float* x, Parts& sum) {
  Eight eight;
  std::memcpy(&eight, x, sizeof eight);
  const Parts v = __builtin_convertvector(eight, Parts);
  sum += v * v;
}

// out = round(g); returns the sum of its squares, in double: the square of any fp32 is finite and
// the sum loses nothing that matters.
PAGODA_TARGET_CLONES double round_and_measure(DType dt, const float* g, int64_t n, void* out) {
  Parts sum{};
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec v = as_stored<T>(load_lanes(g + i, count));
      store_lanes(static_cast<T*>(out) + i, v, count);
      float lanes[kLanes];
      store(lanes, v);
      add_squares(lanes, sum);
      add_squares(lanes + kParts, sum);
    });
  });
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
        sums[static_cast<size_t>(i / kPiece)] =
            round_and_measure(dt, g + i, count, at(dt, out, i));
      }
    });
    double total = 0.0;
    for (double sum : sums) total += sum;
    *sum_of_squares = total;
  });
}

}  // namespace pagoda
