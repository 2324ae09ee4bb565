// AdamW (Loshchilov & Hutter 2019) on spans, in the order of operations of torch.optim.AdamW
// (single tensor, amsgrad off), so that curves can be compared step by step:
//   p *= 1 - lr * weight_decay
//   m  = m + (g - m) (1 - beta1)
//   v  = v beta2 + ((1 - beta2) g) g
//   p += (-lr / (1 - beta1^t) m) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// Element arithmetic is fp32 without fused multiply-adds; the scalars above are computed in double
// and rounded once. Results are the same for any thread count and vector width.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/device.h"

namespace pagoda {

struct AdamStep {
  double lr = 0.0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;  // 0 for norms and biases
  int64_t t = 1;              // this update's number, from 1
};

// Updates n elements: master, m, v in place; weight (of weight_dtype; nullptr: not wanted) becomes
// the new master, rounded by bf16_round_weight. The gradient is grad * grad_scale (clipping); grad
// == nullptr is a gradient of zeros and gives exactly its bits. Blocks until done. False if a new
// master is not finite, or not when rounded to bf16. REQUIRES: t >= 1; spans do not overlap.
[[nodiscard]] bool adam_update(const AdamStep& step, DType grad_dtype, const void* grad,
                               float grad_scale, int64_t n, float* master, float* m, float* v,
                               DType weight_dtype, void* weight, ThreadPool& pool);

}  // namespace pagoda
