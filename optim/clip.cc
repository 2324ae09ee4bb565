#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace pagoda {

Clip measure_norm(std::span<const double> sums_of_squares) {
  double sum = 0.0;
  for (double s : sums_of_squares) sum += s;
  Clip clip;
  clip.norm = std::sqrt(sum);
  clip.finite = std::isfinite(clip.norm);
  if (!clip.finite) clip.coefficient = 0.0f;
  return clip;
}

Clip clip_by_norm(std::span<const double> sums_of_squares, double max_norm) {
  CHECK(max_norm > 0.0, "clip norm %g", max_norm);
  Clip clip = measure_norm(sums_of_squares);
  if (clip.finite) {
    clip.coefficient = static_cast<float>(std::min(1.0, max_norm / (clip.norm + 1e-6)));
  }
  return clip;
}

}  // namespace pagoda
