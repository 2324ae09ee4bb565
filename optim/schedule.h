// Learning-rate schedules: pure functions of the step, with the formulas of Hugging Face
// Transformers' get_{constant,linear,cosine}_schedule_with_warmup.
#pragma once

#include <cstdint>

namespace pagoda {

enum class ScheduleKind : uint8_t { kConstant, kLinear, kCosine };

// What the peak learning rate is multiplied with for the update after `steps_done` updates. It
// rises from 0 over warmup_steps (so the first update of a run with warmup has 0, as in
// Transformers); linear and cosine reach 0 at total_steps and stay there.
double schedule_factor(ScheduleKind kind, int64_t steps_done, int64_t warmup_steps,
                       int64_t total_steps);

}  // namespace pagoda
