// Learning-rate schedules: pure functions of the step, with the formulas of Hugging Face Transformers'
// get_{constant,linear,cosine}_schedule_with_warmup.
#pragma once

#include <cstdint>

namespace pagoda {

enum class ScheduleKind : uint8_t { kConstant, kLinear, kCosine };

struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  double peak = 0.0;         // learning rate after the warmup
  int64_t warmup_steps = 0;  // from 0, linearly
  int64_t total_steps = 0;   // where linear and cosine reach 0

  // The learning rate of the update after `steps_done` updates: the first update of a run with warmup
  // has 0, as in Transformers.
  double learning_rate(int64_t steps_done) const;
};

}  // namespace pagoda
