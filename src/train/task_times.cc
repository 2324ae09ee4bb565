#include "train/task_times.h"

#include <chrono>

namespace pagoda {

struct TaskTimes::Running {
  TaskKind kind;
  double units;
  std::chrono::steady_clock::time_point start;
};

void TaskTimes::begin(const Task& task, Stream& s) {
  running_ = std::make_shared<Running>(Running{task.kind, task_units(task, shape_), {}});
  s.enqueue([running = running_] { running->start = std::chrono::steady_clock::now(); });
}

void TaskTimes::end(Stream& s) {
  s.enqueue([this, running = std::move(running_)] {
    const std::chrono::duration<double> ran = std::chrono::steady_clock::now() - running->start;
    std::lock_guard lock(mutex_);
    samples_[static_cast<size_t>(running->kind)].push_back({running->units, ran.count()});
  });
}

}  // namespace pagoda
