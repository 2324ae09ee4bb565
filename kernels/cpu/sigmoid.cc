// The logistic function of a few numbers: one a token.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

PAGODA_TARGET_CLONES void sigmoid_row(const float* x, int64_t n, float* out) {
  for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    store_lanes(out + i, sigmoid_lanes(load_lanes(x + i, count)), count);
  });
}

PAGODA_TARGET_CLONES void sigmoid_gradient(const float* out, const float* dout, int64_t n,
                                           float* dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] = dout[i] * (out[i] * (1.0f - out[i]));
}

}  // namespace

void CpuOps::sigmoid(const float* logits, int64_t n, float* out, Stream& s) {
  CHECK(n >= 0);
  s.enqueue([=] { sigmoid_row(logits, n, out); });
}

void CpuOps::sigmoid_backward(DType dt, const float* out, const float* dout, int64_t n,
                              void* dlogits, Stream& s) {
  CHECK(n >= 0);
  s.enqueue([=] {
    float* gradient = row_to_write(dt, dlogits, n, Scratch::kRowA);
    sigmoid_gradient(out, dout, n, gradient);
    write_row(dt, gradient, n, dlogits);
  });
}

}  // namespace pagoda
