// What streams do between tasks: for programs that measure what tasks take.
#pragma once

#include <algorithm>

#include "train/task_times.h"

namespace pagoda {

// Seconds between the end of a task and the start of the next, on average, in which a device's
// stream was busy: of all `busy_s` seconds that it was, tasks explain the rest. REQUIRES: a task.
inline double between_s(const TaskTimes::OfDevice& of, double busy_s) {
  const double tasks_s = of.experts_s + of.tokens_s + of.weights_s;
  return std::max(0.0, busy_s - tasks_s) / static_cast<double>(of.tasks);
}

}  // namespace pagoda
