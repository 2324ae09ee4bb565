// Rotary position embedding (Su et al. 2021), half-split pairs.
#include <cmath>

#include "base/target_clones.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/cpu_ops.h"

namespace pagoda {
namespace {

PAGODA_TARGET_CLONES void rotate(const float* cosine, const float* sine, int64_t half, float* x) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace

void CpuOps::rope(DType dt, const int32_t* positions, double theta, int64_t tokens, int64_t heads,
                  int64_t head_dim, int64_t stride, bool inverse, void* x, Stream& s) {
  CHECK(tokens >= 0 && heads > 0 && head_dim > 0 && head_dim % 2 == 0);
  CHECK(stride >= heads * head_dim);
  const int64_t half = head_dim / 2;
  std::vector<double> frequency(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    frequency[static_cast<size_t>(i)] =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  s.enqueue([=, pool = &s.pool(), frequency = std::move(frequency)] {
    for_blocks(*pool, tokens, rows_per_block(heads * head_dim), [&](int64_t begin, int64_t end) {
      float* cosine = scratch_floats(Scratch::kRowA, half);
      float* sine = scratch_floats(Scratch::kRowB, half);
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle = positions[t] * frequency[static_cast<size_t>(i)];
          cosine[i] = static_cast<float>(std::cos(angle));
          sine[i] = static_cast<float>(inverse ? -std::sin(angle) : std::sin(angle));
        }
        for (int64_t head = 0; head < heads; ++head) {
          void* place = at(dt, x, t * stride + head * head_dim);
          float* row = row_to_write(dt, place, head_dim, Scratch::kRowC);
          if (dt == DType::kBF16) widen(static_cast<const bf16*>(place), head_dim, row);
          rotate(cosine, sine, half, row);
          write_row(dt, row, head_dim, place);
        }
      }
    });
  });
}

}  // namespace pagoda
