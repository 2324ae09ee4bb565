#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pagoda {

double schedule_factor(ScheduleKind kind, int64_t steps_done, int64_t warmup_steps,
                       int64_t total_steps) {
  const auto step = static_cast<double>(steps_done);
  const auto warmup = static_cast<double>(warmup_steps), total = static_cast<double>(total_steps);
  if (steps_done < warmup_steps) return step / std::max(1.0, warmup);
  const double decay_steps = std::max(1.0, total - warmup);
  switch (kind) {
    case ScheduleKind::kConstant:
      return 1.0;
    case ScheduleKind::kLinear:
      return std::max(0.0, (total - step) / decay_steps);
    case ScheduleKind::kCosine:
      // Past the end the cosine would rise again.
      return 0.5 *
             (1.0 + std::cos(std::numbers::pi * std::min(1.0, (step - warmup) / decay_steps)));
  }
  return 1.0;
}

}  // namespace pagoda
