#include "bench/race/timing.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/clock.h"

namespace pagoda {

TimingClock::TimingClock() : start_us_(monotonic_us()), cpu_start_us_(process_cpu_us()) {}

Timing TimingClock::finish(int64_t bytes) const {
  const int64_t wall_us = std::max<int64_t>(monotonic_us() - start_us_, 1);
  const int64_t cpu_us = process_cpu_us() - cpu_start_us_;
  return {bytes, 1e-6 * static_cast<double>(wall_us), 1e-6 * static_cast<double>(cpu_us)};
}

double quantile(std::vector<double> values, double share) {
  CHECK(!values.empty() && share >= 0 && share <= 1);
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(std::floor(place));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
}

}  // namespace pagoda
