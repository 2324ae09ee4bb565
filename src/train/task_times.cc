#include "train/task_times.h"

#include "base/clock.h"

namespace pagoda {

struct TaskTimes::Running {
  TaskKind kind;
  double units;
  int64_t start_us = 0, start_cpu_us = 0;
};

void TaskTimes::begin(const Task& task, Stream& s) {
  running_ = std::make_shared<Running>(Running{task.kind, task_units(task, shape_), {}});
  s.enqueue([running = running_] {
    running->start_cpu_us = process_cpu_us();
    running->start_us = monotonic_us();
  });
}

void TaskTimes::end(Stream& s) {
  s.enqueue([this, running = std::move(running_)] {
    const auto ran_us = static_cast<double>(monotonic_us() - running->start_us);
    const auto cpu_us = static_cast<double>(process_cpu_us() - running->start_cpu_us);
    std::lock_guard lock(mutex_);
    samples_[static_cast<size_t>(running->kind)].push_back(
        {running->units, 1e-6 * ran_us, 1e-6 * cpu_us});
  });
}

}  // namespace pagoda
