// Measures how long tasks ran on their streams: by kind, for a machine profile, and by device, for
// shares of work. A task's time runs from when its stream comes to it until its end, without
// waiting for pages.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "plan/machine/machine_profile.h"

namespace pagoda {

class TaskTimes {
 public:
  explicit TaskTimes(const RunShape* shape);  // not owned

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
  // The tasks of a device that belong to a round (RunShape::rounds()) in a phase; sums that are
  // finished belong to the round of the task before them.
  struct OfRound {
    double tasks_s = 0;
    // Between two of them that follow each other in a layer or from one to its neighbour: for what
    // the stream waits or does then, no other stage is needed.
    double between_s = 0;
  };
  // What one of the rank's devices computed, in both phases.
  struct OfDevice {
    int64_t tasks = 0;
    int64_t expert_rows = 0;  // of its forward
    double experts_s = 0;
    double tokens_s = 0;   // of what is done to its tokens, and to rows beside their experts
    double weights_s = 0;  // of sums, gradients and updates of weights, whatever its tokens are
    std::vector<std::array<OfRound, kPhases>> rounds = {};  // [round][phase] of both
    int64_t end_us = 0;                                     // of the newest task
  };
  const std::vector<OfDevice>& devices() const { return devices_; }

 private:
  struct Running;
  // A task's round, and its place: -1 is the embedding's layer, num_layers the head's.
  struct Part {
    int64_t round = 0, layer = -1;
    Phase phase = Phase::kForward;
    bool leads_to(const Part& next) const;
  };
  Part part_of(const Task& task) const;
  static double& time_of(TaskKind kind, OfDevice& device);
  static void add_to_round(const Running& running, double ran_s, OfDevice& device, Part& newest);

  const RunShape& shape_;
  std::shared_ptr<Running> running_;  // the issuing thread's task, between begin and end
  std::mutex mutex_;                  // guards the rest while streams run
  std::array<std::vector<CostSample>, kTaskKinds> samples_;
  std::array<std::vector<int>, kTaskKinds> sample_device_;  // of each; -1: the rank's host
  std::vector<OfDevice> devices_;
  std::vector<Part> newest_;           // [device] of the tasks that have ended
  std::vector<int64_t> issued_round_;  // [device] of the newest task; of the issuing thread
};

}  // namespace pagoda
