#include "bench/leg.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace pagoda {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double process_cpu_s() {
  rusage usage = {};
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

}  // namespace

LegTimer::LegTimer() : start_(std::chrono::steady_clock::now()), cpu_start_s_(process_cpu_s()) {}

Leg LegTimer::finish(int64_t bytes) const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  return {bytes, std::max(elapsed.count(), 1e-9), process_cpu_s() - cpu_start_s_};
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
