#include "train/task_times.h"

#include <cstdlib>

#include "base/clock.h"

namespace pagoda {

struct TaskTimes::Running {
  TaskKind kind;
  double units, tasks;
  int device = -1;        // of the rank; -1: a task of its host
  bool computes = false;  // on the device's main stream
  int64_t rows = 0;
  Part part = {};
  int64_t start_us = 0, start_cpu_us = 0, start_own_us = 0;
};

TaskTimes::TaskTimes(const RunShape* shape)
    : shape_(*shape),
      devices_(static_cast<size_t>(shape->own_devices().count)),
      newest_(devices_.size()),
      issued_round_(devices_.size(), 0) {
  for (OfDevice& device : devices_) device.rounds.resize(static_cast<size_t>(shape->rounds()));
}

bool TaskTimes::Part::leads_to(const Part& next) const {
  return round == next.round && phase == next.phase && std::abs(layer - next.layer) <= 1;
}

TaskTimes::Part TaskTimes::part_of(const Task& task) const {
  const bool head = task.kind == TaskKind::kHead || task.kind == TaskKind::kLoss ||
                    task.kind == TaskKind::kLogits;
  Part part{-1, head ? shape_.num_layers : task.layer, task.phase};
  const int64_t microbatch = task.microbatch >= 0 ? task.microbatch : task.first_microbatch;
  if (microbatch >= 0) part.round = shape_.round_of(microbatch);
  return part;
}

double& TaskTimes::time_of(TaskKind kind, OfDevice& device) {
  if (kind == TaskKind::kExpert || kind == TaskKind::kExpertBackward) return device.experts_s;
  const TaskUnit unit = task_row(kind).unit;
  const bool of_weights = unit == TaskUnit::kElements || unit == TaskUnit::kSummedElements ||
                          unit == TaskUnit::kUpdatedElements;
  return of_weights ? device.weights_s : device.tokens_s;
}

void TaskTimes::add_to_round(const Running& running, double ran_s, OfDevice& device, Part& newest) {
  const Part& part = running.part;
  OfRound& round = device.rounds[static_cast<size_t>(part.round)][static_cast<size_t>(part.phase)];
  const bool follows = device.end_us > 0 && newest.leads_to(part);
  if (follows) round.between_s += 1e-6 * static_cast<double>(running.start_us - device.end_us);
  round.tasks_s += ran_s;
  newest = part;
}

void TaskTimes::begin(const Task& task, int64_t tasks, Stream& s) {
  const bool computes = !task.on_host && task.lane == Lane::kCompute;
  const int device = task.on_host ? -1 : task.device - shape_.own_devices().first;
  Part part = part_of(task);
  if (computes) {
    int64_t& newest = issued_round_[static_cast<size_t>(device)];
    if (part.round < 0) part.round = newest;
    newest = part.round;
  }
  running_ = std::make_shared<Running>(Running{task.kind, task_units(task, shape_),
                                               static_cast<double>(tasks), device, computes,
                                               task.rows, part, 0, 0});
  s.enqueue([running = running_] {
    running->start_cpu_us = process_cpu_us();
    running->start_own_us = thread_cpu_us();
    running->start_us = monotonic_us();
  });
}

void TaskTimes::end(Stream& s) {
  s.enqueue([this, running = std::move(running_)] {
    const int64_t end_us = monotonic_us();
    const auto ran_us = static_cast<double>(end_us - running->start_us);
    const auto own_us = static_cast<double>(thread_cpu_us() - running->start_own_us);
    const auto cpu_us = static_cast<double>(process_cpu_us() - running->start_cpu_us);
    std::lock_guard lock(mutex_);
    samples_[static_cast<size_t>(running->kind)].push_back(
        {running->units, 1e-6 * ran_us, 1e-6 * cpu_us, running->tasks, 1e-6 * own_us});
    sample_device_[static_cast<size_t>(running->kind)].push_back(running->device);
    if (!running->computes) return;
    OfDevice& device = devices_[static_cast<size_t>(running->device)];
    ++device.tasks;
    if (running->kind == TaskKind::kExpert) device.expert_rows += running->rows;
    time_of(running->kind, device) += 1e-6 * ran_us;
    add_to_round(*running, 1e-6 * ran_us, device, newest_[static_cast<size_t>(running->device)]);
    device.end_us = end_us;
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
