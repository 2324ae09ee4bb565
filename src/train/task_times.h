// Measures how long tasks ran on their streams, by kind, for a machine profile. A task's time runs
// from when its stream comes to it until its end, without waiting for pages.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "plan/machine/machine_profile.h"

namespace pagoda {

class TaskTimes {
 public:
  // `shape` is not owned.
  explicit TaskTimes(const RunShape* shape) : shape_(*shape) {}

  // Call these around the work of a task, once its leases are taken, on the issuing thread of `s`.
  void begin(const Task& task, Stream& s);
  void end(Stream& s);

  // REQUIRES: the streams have been waited for.
  const std::vector<CostSample>& of(TaskKind kind) const {
    return samples_[static_cast<size_t>(kind)];
  }

 private:
  struct Running;
  const RunShape& shape_;
  std::shared_ptr<Running> running_;  // the issuing thread's task, between begin and end
  std::mutex mutex_;                  // guards samples_ while streams run
  std::array<std::vector<CostSample>, kTaskKinds> samples_;
};

}  // namespace pagoda
