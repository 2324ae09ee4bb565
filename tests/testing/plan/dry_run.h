// A run without devices: the schedule, ledger and forecast of a trainer, driven by given routings.
// It visits the pieces that a trainer would run, so that they can be counted and timed beforehand.
// With several ranks it is that of RunShape::rank.
#pragma once

#include <functional>
#include <vector>

#include "train/pass_planner.h"

namespace pagoda {

class DryRun {
 public:
  using Visit = std::function<void(const StepPiece&)>;

  DryRun(const RunShape& shape, const PageTable& pages, const std::vector<SlotClass>& classes,
         bool state_on_device, Ledger ledger);
  DryRun(const DryRun& other)
      : copies_(other.copies_), passes_(other.passes_, &copies_), ledger_(other.ledger_) {}
  DryRun& operator=(const DryRun&) = delete;

  // One step. `skip`: its gradients are not finite, and no update follows from them.
  void train(const Routing& routing, const Visit& visit, bool skip = false);
  void drain(const Visit& visit);
  // Forward only. REQUIRES: drain() since train().
  void evaluate(const Routing& routing, const Visit& visit);

  // Records whose gradient the newest step made.
  const std::vector<int64_t>& touched() const { return passes_.touched(); }

 private:
  void run(const StepPiece& piece, const Visit& visit);

  WeightCopies copies_;
  PassPlanner passes_;
  Ledger ledger_;
};

}  // namespace pagoda
