// Gradient clipping by norm, as torch.nn.utils.clip_grad_norm_.
#pragma once

#include <span>

namespace pagoda {

struct Clip {
  double norm = 0.0;         // sqrt of the sum, in the order given
  float coefficient = 1.0f;  // min(1, max_norm / (norm + 1e-6)); 0 when not finite
  bool finite = true;        // false: a gradient holds inf or NaN, or the norm overflowed
};

// sums_of_squares: one per record, in record order (the order is part of the result's bits).
// REQUIRES: max_norm > 0.
Clip clip_by_norm(std::span<const double> sums_of_squares, double max_norm);

// The same norm with no limit: coefficient 1 when finite.
Clip measure_norm(std::span<const double> sums_of_squares);

}  // namespace pagoda
