#include "optim/adam.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/bytes.h"
#include "base/target_clones.h"

namespace pagoda {
namespace {

constexpr int64_t kPiece = 1024;   // elements whose gradient is widened at once: stays in L1
constexpr int64_t kBlock = 65536;  // elements of one parallel task

struct Scalars {
  float keep;         // 1 - lr * weight_decay
  bool decays;
  float lerp;         // 1 - beta1
  bool lerp_from_end; // torch.lerp computes from the nearer end
  float lerp_rest;    // beta1
  float beta2;
  float square;       // 1 - beta2
  float root;         // sqrt(1 - beta2^t)
  float eps;
  float rate;         // -lr / (1 - beta1^t)
};

Scalars scalars_of(const AdamStep& s) {
  const auto t = static_cast<double>(s.t);
  const double lerp = 1.0 - s.beta1;
  Scalars c;
  c.keep = static_cast<float>(1.0 - s.lr * s.weight_decay);
  c.decays = s.weight_decay != 0.0;
  c.lerp = static_cast<float>(lerp);
  c.lerp_from_end = lerp >= 0.5;
  c.lerp_rest = 1.0f - c.lerp;
  c.beta2 = static_cast<float>(s.beta2);
  c.square = static_cast<float>(1.0 - s.beta2);
  c.root = static_cast<float>(std::sqrt(1.0 - std::pow(s.beta2, t)));
  c.eps = static_cast<float>(s.eps);
  c.rate = static_cast<float>(-(s.lr / (1.0 - std::pow(s.beta1, t))));
  return c;
}

PAGODA_TARGET_CLONES void widen_scaled(const bf16* grad, float scale, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_float(grad[i]) * scale;
}

PAGODA_TARGET_CLONES void copy_scaled(const float* grad, float scale, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = grad[i] * scale;
}

PAGODA_TARGET_CLONES void update_piece(const Scalars& c, const float* __restrict grad, int64_t n,
                                       float* __restrict master, float* __restrict m,
                                       float* __restrict v) {
  const float keep = c.decays ? c.keep : 1.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i];
    const float difference = g - m[i];
    const float mean = c.lerp_from_end ? g - difference * c.lerp_rest : m[i] + c.lerp * difference;
    const float square = v[i] * c.beta2 + (c.square * g) * g;
    const float denominator = std::sqrt(square) / c.root + c.eps;
    master[i] = master[i] * keep + (c.rate * mean) / denominator;
    m[i] = mean;
    v[i] = square;
  }
}

// The largest magnitude as bits, which order as the values do; infinity and NaN are above all.
PAGODA_TARGET_CLONES uint32_t largest_bits(const float* values, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  }
  return largest;
}

PAGODA_TARGET_CLONES void round_weights(const float* master, int64_t n, bf16* weight) {
  for (int64_t i = 0; i < n; ++i) weight[i] = bf16_round_weight(master[i]);
}

void store_weights(const float* master, int64_t n, DType dtype, void* weight, int64_t first) {
  if (dtype == DType::kBF16) {
    round_weights(master, n, static_cast<bf16*>(weight) + first);
  } else {
    std::memcpy(static_cast<float*>(weight) + first, master,
                static_cast<size_t>(n) * sizeof(float));
  }
}

// The scaled gradient of n elements from `first`, in `out`.
void read_gradient(DType dtype, const void* grad, float scale, int64_t first, int64_t n,
                   float* out) {
  if (grad == nullptr) {
    std::fill_n(out, n, 0.0f);
  } else if (dtype == DType::kBF16) {
    widen_scaled(static_cast<const bf16*>(grad) + first, scale, n, out);
  } else {
    copy_scaled(static_cast<const float*>(grad) + first, scale, n, out);
  }
}

}  // namespace

bool adam_update(const AdamStep& step, DType grad_dtype, const void* grad, float grad_scale,
                 int64_t n, float* master, float* m, float* v, DType weight_dtype, void* weight,
                 ThreadPool& pool) {
  CHECK(step.t >= 1 && n >= 0);
  constexpr uint32_t kInfinity = 0x7f800000u, kHalfOfBf16Step = 0x8000u;
  const Scalars scalars = scalars_of(step);
  std::atomic<bool> finite{true};
  pool.parallel_for(div_ceil(n, kBlock), [&](int64_t block) {
    const int64_t end = std::min(n, (block + 1) * kBlock);
    float gradient[kPiece];
    uint32_t largest = 0;
    for (int64_t i = block * kBlock; i < end; i += kPiece) {
      const int64_t count = std::min(kPiece, end - i);
      read_gradient(grad_dtype, grad, grad_scale, i, count, gradient);
      update_piece(scalars, gradient, count, master + i, m + i, v + i);
      if (weight) store_weights(master + i, count, weight_dtype, weight, i);
      largest = std::max(largest, largest_bits(master + i, count));
    }
    if (largest + kHalfOfBf16Step >= kInfinity) finite = false;
  });
  return finite;
}

}  // namespace pagoda
