// How long tasks ran on their streams, by kind: what a machine profile is made of. The time between
// a task's turn in its stream and its end, without waiting for pages.
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

  // Around the work of a task, once its leases are taken. The issuing thread of `s`.
  void begin(const Task& task, Stream& s);
  void end(Stream& s);

  // REQUIRES: the streams have been waited for.
  const std::vector<CostSample>& of(TaskKind kind) const {
    return samples_[static_cast<size_t>(kind)];
  }

 private:
  struct Running;
  const RunShape& shape_;
  std::shared_ptr<Running> running_;  // of the issuing thread, between begin and end
  std::mutex mutex_;                  // guards samples_ while streams run
  std::array<std::vector<CostSample>, kTaskKinds> samples_;
};

}  // namespace pagoda
