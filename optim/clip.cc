#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace pagoda {

float clip_factor(double norm, double max_norm) {
  CHECK(std::isfinite(norm) && norm >= 0.0, "gradient norm %g", norm);
  CHECK(max_norm > 0.0, "clip norm %g", max_norm);
  return static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6)));
}

}  // namespace pagoda
