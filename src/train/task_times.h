// Measures how long tasks ran on their streams: by kind, for a machine profile, and by device, for
// shares of work. A task's time runs from when its stream comes to it until its end, without
// waiting for pages.
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
  explicit TaskTimes(const RunShape* shape)
      : shape_(*shape), devices_(static_cast<size_t>(shape->own_devices().count)) {}

  // Call these around the work of a task, once its leases are taken, on the issuing thread of `s`.
  // `tasks`: so many are computed together, and `task` has the rows of all of them.
  void begin(const Task& task, int64_t tasks, Stream& s);
  void end(Stream& s);

  // REQUIRES of all: the streams have been waited for.
  const std::vector<CostSample>& of(TaskKind kind) const {
    return samples_[static_cast<size_t>(kind)];
  }
  // Those of one of the rank's devices, on any of its streams.
  std::vector<CostSample> of(TaskKind kind, int device) const;
  // What one of the rank's devices computed, in both phases.
  struct OfDevice {
    int64_t tasks = 0;
    int64_t expert_rows = 0;  // of its forward
    double experts_s = 0;
    double rest_s = 0;
    std::array<double, kPhases> phase_s = {};  // both, by the phase
  };
  const std::vector<OfDevice>& devices() const { return devices_; }

 private:
  struct Running;
  const RunShape& shape_;
  std::shared_ptr<Running> running_;  // the issuing thread's task, between begin and end
  std::mutex mutex_;                  // guards the rest while streams run
  std::array<std::vector<CostSample>, kTaskKinds> samples_;
  std::array<std::vector<int>, kTaskKinds> sample_device_;  // of each; -1: the rank's host
  std::vector<OfDevice> devices_;
};

}  // namespace pagoda
