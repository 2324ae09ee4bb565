// AdamW (Loshchilov & Hutter 2019) on one record, in the order of operations of torch.optim.AdamW
// (single tensor, amsgrad off), so that curves can be compared step by step:
//   p *= 1 - lr * weight_decay
//   m  = m + (g - m) (1 - beta1)
//   v  = v beta2 + ((1 - beta2) g) g
//   p += (-lr / (1 - beta1^t) m) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// A v that overflows makes p NaN, where PyTorch would let p stand still from then on.
// Element arithmetic is fp32 without fused multiply-adds; the scalars above are computed in double
// and rounded once. The update uses the new moments as they are; formats of fewer bits round them
// when they are stored. Results are the same for any thread count and ISA.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "optim/adam_kernel.h"
#include "optim/state_format.h"

namespace pagoda {

struct AdamStep {
  double lr = 0.0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;
  int64_t t = 1;           // this update's number, from 1
  uint32_t noise_key = 0;  // key of stochastic rounding (moments.h), different for each record and
                           // t
};

// The values that all elements of an update share.
AdamScalars adam_scalars(const AdamStep& step, float grad_scale);

// Elements [begin, end) of a record.
struct AdamSpan {
  int64_t begin = 0, end = 0;
  bool decay = true;  // false for norms and biases
};

// A record: its spans, which cover it in order, and the memory that it is stored in.
struct AdamRecord {
  StateLayout layout;
  std::span<const AdamSpan> spans;
  void* weights = nullptr;  // in layout.weight_dtype
  std::byte* state = nullptr;
};

// Makes one update in place. The gradient, of the weights' dtype, is grad * grad_scale (clipping);
// grad == nullptr gives the bits of a gradient of zeros. Blocks until done. Returns false if a new
// master, or a new master rounded to bf16, is not finite; any NaN among the old values or the
// gradient leads to that. The record is then spoilt, and its bits may differ between kernels.
// REQUIRES: t >= 1; fewer than 2^32 elements; `kernel` is of adam_kernels().
[[nodiscard]] bool adam_update(const AdamStep& step, const AdamRecord& record, const void* grad,
                               float grad_scale, ThreadPool& pool,
                               const AdamKernel& kernel = adam_kernels().front());

}  // namespace pagoda
