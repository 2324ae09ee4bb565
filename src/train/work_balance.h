// Says during a run how its work moves between devices, from what the run itself shows. All ranks
// decide alike: each tells what it measured, at one point of the step. Some steps must be timed
// task by task (train/task_times.h). One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/exchange/home_moves.h"
#include "plan/machine/device_speeds.h"
#include "train/step_runner.h"
#include "train/task_times.h"

namespace pagoda {

// How many steps are timed before each decision.
inline constexpr int64_t kTimedSteps = 2;

// What a unit of some work takes on each of the rank's devices. Noise only makes a device slower,
// so the fastest of the steps counts.
class UnitTimes {
 public:
  // What the device did in a step.
  void add(size_t device, double seconds, int64_t units);
  double of(size_t device) const;  // 0: it did none

 private:
  std::vector<double> least_s_;  // [device]
};

// Homes of experts (parallel.migrate_steps): by the rows of experts, how long devices take for
// them, how long a step takes, and how fast ranks exchange pages. The rule is
// plan/exchange/home_moves.h's, and what rank 0 makes of what all measured holds. The last steps
// of every interval must be timed.
class HomeBalance {
 public:
  explicit HomeBalance(int64_t every) : every_(every), means_(every) {}  // 0: homes stay

  // Whether the next step must be timed.
  bool wants_times() const { return every_ > 0 && means_.steps() % every_ >= every_ - kTimedSteps; }
  // Call it behind each step. `times`: its own; nullptr: it was not timed.
  void end_step(const RunShape& shape, const StepResult& result, double step_s,
                const TaskTimes* times);

  // True after each `every`-th step.
  bool due() const { return every_ > 0 && means_.steps() > 0 && means_.steps() % every_ == 0; }
  // The moves that pay. All ranks call it together. REQUIRES: due().
  Result<HomeMoves> decide(Session& session);
  // Learns from moves that were made how fast ranks exchange pages. `exchanged_s`: how long these
  // were on their way, the same on all ranks.
  void moved(const HomeMoves& moves, double exchanged_s);

  const RowMeans& means() const { return means_; }

 private:
  Result<StepTimes> times_of_all(Session& session);

  int64_t every_;
  RowMeans means_;
  UnitTimes row_times_;     // of an expert's rows, in the interval's steps
  double steps_s_ = 0;      // of the interval's steps
  double bytes_per_s_ = 0;  // 0: not measured yet
};

// Shares of attention and seats of experts (parallel.shares = measured), by the devices' speed.
// Algorithm 5 of HEXA-MoE times a proxy task on each device before training; here the run's own
// tasks are timed, in the last of every kMeasureSteps steps, so that what changes later is seen
// too: heat, and others' load.
inline constexpr int64_t kMeasureSteps = 4;

class ShareBalance {
 public:
  explicit ShareBalance(bool on) : on_(on) {}

  // Whether the next step must be timed.
  bool wants_times() const { return on_ && steps_ % kMeasureSteps >= kMeasureSteps - kTimedSteps; }
  // Call it behind each step. `times`: its own; nullptr: it was not timed.
  void end_step(const RunShape& shape, double step_s, const TaskTimes* times);
  // What the newest checkpoint took, and what it took to go on from one with another deal.
  void saved(double seconds) { save_s_ = seconds; }
  // `moved`: to new stores.
  void dealt(double seconds, bool moved) { deal_s_[moved] = seconds; }
  // What a flush of the page file took.
  void wrote(int64_t bytes, double seconds);
  bool has_written() const { return has_written_; }  // whatever it had to write
  // What another deal takes on this rank, with the save before it and a new store of so many bytes;
  // 0: with the one that there is. As the last such deal; until there was one, as long as the bytes
  // take at the write rate, if that is known, and a step at least.
  double cost_s(int64_t new_store_bytes) const;

  // True behind each kMeasureSteps-th step.
  bool due() const { return on_ && steps_ > 0 && steps_ % kMeasureSteps == 0; }
  // Tells the others what this rank measured since the last call. True: a device's share of either
  // work is another (shares_differ()), and devices() have the speeds. All ranks call it together,
  // with the same devices, and get the same. kIoError if one of them tells what are no times.
  // REQUIRES: due().
  Result<bool> measure(RankGroup& ranks, const std::vector<DeviceSetup>& now);
  const std::vector<DeviceSetup>& devices() const { return devices_; }  // of all ranks
  // Whether deal_pays(), by the newest measure(); it does not if that found no speeds. The deal
  // takes what the slowest rank's cost_s(0) was then, or `cost_s` if that is more.
  bool pays(const RunShape& shape, const std::vector<int>& shard_device, int64_t steps_left,
            double cost_s = 0) const;

 private:
  // [device] the time of a token or of a row; 0: it had none.
  struct Times {
    std::vector<double> token_s, row_s;
  };
  Status take(const std::vector<std::string>& all, Times& times);

  bool on_;
  int64_t steps_ = 0;
  double step_s_ = 0;               // the newest
  double save_s_ = 0, deal_s_[2] = {0, 0};  // in the stores there were, in new ones; 0: none
  bool has_written_ = false;
  double bytes_per_s_ = 0;  // the fastest flush; 0: none of any bytes
  // What a step took on the slowest rank, and what another deal would.
  double slowest_s_ = 0, cost_s_ = 0;
  UnitTimes token_times_, row_times_;  // since the last measure()
  std::vector<DeviceSetup> devices_;  // with the newest speeds; none: these were not measured
};

}  // namespace pagoda
