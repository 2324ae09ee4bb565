#include "train/task_times.h"

#include "base/clock.h"

namespace pagoda {

struct TaskTimes::Running {
  TaskKind kind;
  double units, tasks;
  int device = -1;        // of the rank; -1: a task of its host
  bool computes = false;  // on the device's main stream
  int64_t rows = 0;
  Phase phase = Phase::kForward;
  int64_t start_us = 0, start_cpu_us = 0, start_own_us = 0;
};

void TaskTimes::begin(const Task& task, int64_t tasks, Stream& s) {
  const bool computes = !task.on_host && task.lane == Lane::kCompute;
  const int device = task.on_host ? -1 : task.device - shape_.own_devices().first;
  running_ = std::make_shared<Running>(Running{task.kind, task_units(task, shape_),
                                               static_cast<double>(tasks), device, computes,
                                               task.rows, task.phase, 0, 0});
  s.enqueue([running = running_] {
    running->start_cpu_us = process_cpu_us();
    running->start_own_us = thread_cpu_us();
    running->start_us = monotonic_us();
  });
}

void TaskTimes::end(Stream& s) {
  s.enqueue([this, running = std::move(running_)] {
    const auto ran_us = static_cast<double>(monotonic_us() - running->start_us);
    const auto own_us = static_cast<double>(thread_cpu_us() - running->start_own_us);
    const auto cpu_us = static_cast<double>(process_cpu_us() - running->start_cpu_us);
    std::lock_guard lock(mutex_);
    samples_[static_cast<size_t>(running->kind)].push_back(
        {running->units, 1e-6 * ran_us, 1e-6 * cpu_us, running->tasks, 1e-6 * own_us});
    sample_device_[static_cast<size_t>(running->kind)].push_back(running->device);
    if (!running->computes) return;
    OfDevice& device = devices_[static_cast<size_t>(running->device)];
    ++device.tasks;
    const bool forward = running->kind == TaskKind::kExpert;
    const bool of_experts = forward || running->kind == TaskKind::kExpertBackward;
    if (forward) device.expert_rows += running->rows;
    (of_experts ? device.experts_s : device.rest_s) += 1e-6 * ran_us;
    device.phase_s[static_cast<size_t>(running->phase)] += 1e-6 * ran_us;
  });
}

std::vector<CostSample> TaskTimes::of(TaskKind kind, int device) const {
  const std::vector<int>& devices = sample_device_[static_cast<size_t>(kind)];
  std::vector<CostSample> own;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] == device) own.push_back(of(kind)[i]);
  }
  return own;
}

}  // namespace pagoda
