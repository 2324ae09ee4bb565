#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pagoda {

double Schedule::learning_rate(int64_t steps_done) const {
  const auto step = static_cast<double>(steps_done);
  const auto warmup = static_cast<double>(warmup_steps), total = static_cast<double>(total_steps);
  if (steps_done < warmup_steps) return peak * (step / std::max(1.0, warmup));
  const double decay_steps = std::max(1.0, total - warmup);
  switch (kind) {
    case ScheduleKind::kConstant:
      return peak;
    case ScheduleKind::kLinear:
      return peak * std::max(0.0, (total - step) / decay_steps);
    case ScheduleKind::kCosine:
      // Past the end the cosine would rise again; a run may only end at its minimum.
      return peak * 0.5 *
             (1.0 + std::cos(std::numbers::pi * std::min(1.0, (step - warmup) / decay_steps)));
  }
  return peak;
}

}  // namespace pagoda
