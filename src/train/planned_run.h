// A run without devices: the schedule, ledger and forecast of a trainer, driven by routings that
// are given. What it visits is what a trainer would run; to count and to time it beforehand.
#pragma once

#include <functional>
#include <vector>

#include "plan/step_schedule.h"
#include "train/ledger.h"

namespace pagoda {

using Routing = std::vector<std::vector<int64_t>>;  // [layer][E] tokens per expert

class PlannedRun {
 public:
  using Visit = std::function<void(const StepPiece&)>;

  // `shape` and `pages` are not owned.
  PlannedRun(const RunShape* shape, const PageTable* pages, const std::vector<SlotClass>& classes,
             bool state_on_device, bool eager, Ledger ledger);

  // One step. `skip`: its gradients are not finite, and no update follows from them.
  void train(const Routing& routing, const Visit& visit, bool skip = false);
  void settle(const Visit& visit);
  // Forward only. REQUIRES: settle() since train().
  void evaluate(const Routing& routing, const Visit& visit);

  // Records whose gradient the newest step made.
  const std::vector<int64_t>& touched() const { return touched_; }

 private:
  void account(const TaskList& tasks);

  const RunShape& shape_;
  bool eager_;
  StepPlan plan_, forward_plan_;
  Ledger ledger_;
  ExpertForecast forecast_;
  std::vector<int64_t> touched_;
};

}  // namespace pagoda
