// Gradient clipping by norm, with the formula of torch.nn.utils.clip_grad_norm_.
#pragma once

namespace pagoda {

// The factor for gradients of this norm: min(1, max_norm / (norm + 1e-6)), rounded once. REQUIRES:
// norm is finite (the caller skips or stops otherwise), max_norm > 0.
float clip_factor(double norm, double max_norm);

}  // namespace pagoda
