// A run without devices: schedule, ledger and forecast of a trainer, driven by routings that are
// given. What it visits is what a trainer would run.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "plan/replay.h"
#include "plan/step_schedule.h"
#include "train/ledger.h"

namespace pagoda {

using Routing = std::vector<std::vector<int64_t>>;  // [layer][E] tokens per expert

// A task with what a residency made of it.
struct PlacedTask {
  Task task;
  std::vector<Move> moves;
  std::vector<int32_t> slots;
};

PlacedTask place(Replay& replay, const Task& task);

class PlannedRun {
 public:
  using Visit = std::function<void(const StepPiece&)>;

  // `shape` and `pages` are not owned.
  PlannedRun(const RunShape* shape, const PageTable* pages, const std::vector<SlotClass>& classes,
             bool state_on_device, bool eager, Ledger ledger);

  // One step. `skip`: its gradients are not finite, and discarded() names their pages.
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

// Small numbers of everything: layers with and without experts, devices, microbatches.
RunShape random_shape(std::mt19937& random, int devices);
// Some experts get many tokens, some none.
Routing random_routing(std::mt19937& random, const RunShape& shape);

}  // namespace pagoda
