#include "train/pass_planner.h"

#include <utility>

#include "plan/step/pinning.h"

namespace pagoda {

PassPlanner::PassPlanner(const RunShape& shape, const PageTable& pages,
                         std::vector<SlotClass> classes, bool state_on_device,
                         WeightCopies* copies)
    : classes_(std::move(classes)),
      plan_(shape, pages, {.training = true, .state_on_device = state_on_device}),
      forward_plan_(shape, pages, {.training = false}),
      forecast_(shape, pages, classes_),
      copies_(copies) {}

StepSchedule PassPlanner::begin(PassExtent extent, const Ledger& ledger) {
  const bool step = extent == PassExtent::kStep;
  StepSchedule schedule(step ? &plan_ : &forward_plan_, &ledger, &forecast_, extent, copies_);
  if (!step) return schedule;
  touched_.clear();
  if (kept_) schedule.keep(*std::exchange(kept_, std::nullopt));
  return schedule;
}

void PassPlanner::issue(const StepPiece& piece, Ledger& ledger) {
  const RunShape& shape = plan_.shape();
  for (const Task& task : piece.all_tasks()) {
    if (task.kind != TaskKind::kGradient) continue;
    touched_.push_back(task.record);
    if (shape.eager_adam) ledger.touch(task.record);
  }
  for (const Task& task : piece.others) {
    if (task.kind == TaskKind::kAdam && !runs_here(shape, task)) ledger.apply(task.record);
  }
  copies_->account(piece.all_tasks());
}

void PassPlanner::layers_done(double learning_rate, Ledger& ledger) {
  if (plan_.shape().eager_adam) ledger.begin(learning_rate, 1.0f);
}

void PassPlanner::end_step(std::span<const std::vector<int64_t>> tokens_per_expert) {
  if (plan_.shape().pinned_share <= 0) return;
  kept_ = pinned_weights(plan_.shape(), plan_.pages(), classes_, tokens_per_expert,
                         plan_.shape().pinned_share);
}

void PassPlanner::update(double learning_rate, float clip_factor, Ledger& ledger) {
  if (plan_.shape().eager_adam) return;
  ledger.begin(learning_rate, clip_factor);
  for (int64_t record : touched_) ledger.touch(record);
}

StepPiece PassPlanner::between_steps(const Ledger& ledger) const {
  StepPiece piece;
  if (!plan_.shape().options.optimizer_at_end) return piece;
  apply_overdue(plan_, ledger, 0, static_cast<int64_t>(plan_.shape().records.size()), piece.tasks);
  take_own_part(plan_.shape(), piece);
  add_uses(piece.tasks, piece.foreseen.emplace());
  return piece;
}

StepPiece PassPlanner::drain(const Ledger& ledger) const {
  StepPiece piece;
  piece.cycle = StepPiece::Cycle::kBetweenSteps;
  apply_all(plan_, ledger, piece.tasks);
  take_own_part(plan_.shape(), piece);
  add_uses(piece.tasks, piece.foreseen.emplace());
  return piece;
}

StepPiece PassPlanner::settle(std::span<const int64_t> records, const Ledger& ledger) const {
  StepPiece piece;
  piece.cycle = StepPiece::Cycle::kBetweenSteps;
  for (const int64_t r : records) apply_overdue(plan_, ledger, r, r + 1, piece.tasks);
  take_own_part(plan_.shape(), piece);
  add_uses(piece.tasks, piece.foreseen.emplace());
  return piece;
}

}  // namespace pagoda
