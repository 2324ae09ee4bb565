// What the clock of actions (plan/zebra/action_clock.h) needs of a run in zebra's order: the
// seconds of its chunks in each layer, by the costs of its devices, where weights that do not stay
// on a device take as long as they come. Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plan/machine/machine_profile.h"
#include "plan/zebra/action_clock.h"

namespace pagoda {

// Bytes that one device has for weights and states beside what a step needs at a time, below 0 if
// that does not fit; and its part of its rank's host memory. Weights that have room in neither come
// from the drives.
struct WeightRoom {
  double device_bytes = 0, host_bytes = 0;
};

// Seconds of a chunk's work in one layer, by the costs of each device. `rooms`: as of run_times().
// What it is given is not owned, and must outlive it.
class RunTimes {
 public:
  RunTimes(const RunShape& shape, const MachineProfile& profile,
           const std::vector<WeightRoom>& rooms)
      : shape_(shape), profile_(profile), rooms_(rooms), width_(shape.round_microbatches()) {
    all_stays_ = all_stays({});
  }

  ChunkTimes of(int64_t layer);
  double boundary_s();    // a chunk's rows from stage to stage
  SumTimes sums() const;  // once a step
  // Whether weights and states, and so many bytes of each device besides, all stay there. Empty:
  // none are besides.
  bool all_stays(const std::vector<double>& besides) const;

 private:
  void begin_layer(int64_t layer) {
    attended_.assign(static_cast<size_t>(shape_.devices), 0);
    for (int64_t b = 0; b < width_; ++b) {
      ++attended_[static_cast<size_t>(shape_.attending(layer, b))];
    }
  }
  const Cost& cost_of(TaskKind kind, int device) const {
    Task task;
    task.kind = kind;
    task.device = static_cast<uint8_t>(device);
    return profile_.of(task);
  }
  double seconds(TaskKind kind, int device, double units) const {
    return cost_of(kind, device).seconds(units);
  }
  double of_microbatches(std::initializer_list<TaskKind> kinds, int device) const;
  double of_experts(TaskKind kind, int device, int64_t experts) const;
  double adding_s(int device, int64_t layer) const;              // of an expert
  double bytes_of(int device, bool experts, bool states) const;  // of its experts, or dense parts
  PassSeconds paging_s(int device, int64_t experts, int64_t layer) const;
  double moved_s(int from, int to, double bytes) const;
  double transfer(const std::vector<int64_t>& experts, bool beside, bool back,
                  double row_bytes) const;
  double dense_sum_s(int64_t record) const;
  double experts_sum_s(int64_t layer) const;
  double rows() const {  // of an expert, of each microbatch
    return static_cast<double>(shape_.microbatch_tokens * shape_.experts_per_token) /
           static_cast<double>(shape_.num_experts);
  }

  const RunShape& shape_;
  const MachineProfile& profile_;
  const std::vector<WeightRoom>& rooms_;
  int64_t width_;
  std::vector<int64_t> attended_;  // [device] microbatches of a chunk in the layer at hand
  bool all_stays_ = true;          // else no state does
};

// Seconds of a step's chunks on the run's devices: those that attend are the faster ones, and each
// kind takes as long as the slowest of it. `rooms`: [device]; empty: all weights stay on their
// devices. REQUIRES: tasks as they run, not taken together.
ActionTimes run_times(const RunShape& shape, const MachineProfile& profile,
                      const std::vector<WeightRoom>& rooms = {});

// Rows that devices keep from other devices for the backward of a layer's experts
// (RunShape::kept_rows): all of a chunk's with as many for each device as if routing were even
// (RunShape::most_round_blocks), if each has room for them beside all of its weights and states;
// else 0. `rooms`: [device]; empty: 0.
int64_t rows_to_keep(const RunShape& shape, const std::vector<WeightRoom>& rooms);

}  // namespace pagoda
