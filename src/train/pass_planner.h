// What training remembers from task to task and from step to step: the plans of its passes, the
// records whose gradient was made, when the ledger begins an update, and which pages stay on
// devices. StepRunner runs steps on devices, and DryRun only goes through them; they are the same
// steps because both ask here.
//
//   StepSchedule schedule = passes.begin(PassExtent::kStep, ledger);
//   for (StepPiece piece; schedule.next(piece);) {
//     passes.issue(piece, ledger);  ... the tasks, each kAdam of which applies what the
//     ledger has ... if (piece.wait == StepPiece::Wait::kLayersDone)
//     passes.layers_done(learning_rate, ledger);
//   }
//   passes.end_step(schedule.tokens_per_expert());
//   passes.update(learning_rate, clip_factor, ledger);  // not when the step is skipped
//   ... the tasks of passes.between_steps(ledger) ...
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "plan/step/step_schedule.h"
#include "train/ledger.h"

namespace pagoda {

class PassPlanner {
 public:
  // `classes`, state_on_device: those of plan_memory. `copies` is not owned.
  PassPlanner(const RunShape& shape, const PageTable& pages, std::vector<SlotClass> classes,
              bool state_on_device, WeightCopies* copies);
  // The same with other copies, as far as they are.
  PassPlanner(const PassPlanner& other, WeightCopies* copies) : PassPlanner(other) {
    copies_ = copies;
  }

  // Begins a pass; with kStep, a step. The schedule refers to this object and to `ledger`.
  StepSchedule begin(PassExtent extent, const Ledger& ledger);
  // Call before the piece's tasks run: gradients they make belong to the update that an eager plan
  // has begun. Applies the updates that other ranks make, so that all ledgers are alike.
  void issue(const StepPiece& piece, Ledger& ledger);
  // Begins the step's update if the plan is eager.
  void layers_done(double learning_rate, Ledger& ledger);
  // tokens_per_expert: the step's, [layer][E].
  void end_step(std::span<const std::vector<int64_t>> tokens_per_expert);
  // Turns the step's gradients into an update, unless an eager plan has begun it.
  void update(double learning_rate, float clip_factor, Ledger& ledger);

  // The optimizer updates that do not wait for the next step.
  StepPiece between_steps(const Ledger& ledger) const;
  // Applies every pending update.
  StepPiece drain(const Ledger& ledger) const;
  // Applies the pending updates of these experts that have a gradient.
  StepPiece settle(std::span<const int64_t> records, const Ledger& ledger) const;

  // Records whose gradient the newest step made on any rank, in that order.
  const std::vector<int64_t>& touched() const { return touched_; }

 private:
  std::vector<SlotClass> classes_;
  StepPlan plan_, forward_plan_;
  ExpertForecast forecast_;
  WeightCopies* copies_;
  std::vector<int64_t> touched_;
  std::optional<std::vector<PageId>> kept_;  // from the next step on
};

}  // namespace pagoda
