// Says during a run when homes of experts move (parallel.migrate_steps), from what the run itself
// shows: the rows of its experts, how long devices take for them, how long a step takes, and how
// fast ranks exchange pages. The rule is plan/exchange/home_moves.h's. All ranks decide alike: each
// tells what it measured, and what rank 0 makes of it holds.
//
// One step in every interval, the last, is timed task by task.
#pragma once

#include <cstdint>
#include <memory>

#include "plan/exchange/home_moves.h"
#include "train/step_runner.h"
#include "train/task_times.h"

namespace pagoda {

class HomeBalance {
 public:
  explicit HomeBalance(int64_t every) : every_(every), means_(every) {}  // 0: homes stay

  // Call these around each step.
  void begin_step(Session& session);
  void end_step(Session& session, const StepResult& result, double step_s);

  // True after each `every`-th step.
  bool due() const { return every_ > 0 && means_.steps() > 0 && means_.steps() % every_ == 0; }
  // The moves that pay. All ranks call it together. REQUIRES: due().
  Result<HomeMoves> decide(Session& session);
  // Learns from moves that were made how fast ranks exchange pages.
  // `took_s` is the same on all ranks.
  void moved(const HomeMoves& moves, double took_s);

  const RowMeans& means() const { return means_; }

 private:
  Result<StepTimes> times_of_all(Session& session);

  int64_t every_;
  RowMeans means_;
  std::unique_ptr<TaskTimes> times_;  // of the interval's last step
  double steps_s_ = 0;                // of the interval's steps
  double bytes_per_s_ = 0;            // 0: not measured yet
};

}  // namespace pagoda
