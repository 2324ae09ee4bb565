#include "train/planned_run.h"

namespace pagoda {

PlannedRun::PlannedRun(const RunShape* shape, const PageTable* pages,
                       const std::vector<SlotClass>& classes, bool state_on_device, bool eager,
                       Ledger ledger)
    : shape_(*shape),
      eager_(eager),
      plan_(*shape, *pages,
            {.training = true,
             .state_on_device = state_on_device,
             .eager_adam = eager && !shape->options.optimizer_at_end}),
      forward_plan_(*shape, *pages, {.training = false}),
      ledger_(std::move(ledger)),
      forecast_(*shape, *pages, classes) {}

void PlannedRun::account(const TaskList& tasks) {
  for (const Task& task : tasks) {
    if (task.kind == TaskKind::kGradient) {
      touched_.push_back(task.record);
      if (eager_) ledger_.touch(task.record);
    }
    if (task.kind == TaskKind::kAdam) ledger_.pay(task.record);
  }
}

void PlannedRun::train(const Routing& routing, const Visit& visit, bool skip) {
  touched_.clear();
  StepSchedule schedule(&plan_, &ledger_, &forecast_, StepSchedule::Extent::kStep);
  walk(schedule, routing, [&](const StepPiece& piece) {
    visit(piece);
    account(piece.tasks);
    if (eager_ && piece.then == StepPiece::Then::kLayersDone) ledger_.begin(1e-3, 1.0f);
  });
  if (!eager_ && !skip) {
    ledger_.begin(1e-3, 1.0f);
    for (int64_t record : touched_) ledger_.touch(record);
  }
  if (!shape_.options.optimizer_at_end) return;
  StepPiece piece;
  pay_due(plan_, ledger_, 0, static_cast<int64_t>(shape_.records.size()), piece.tasks);
  visit(piece);
  account(piece.tasks);
}

void PlannedRun::settle(const Visit& visit) {
  StepPiece piece;
  pay_all(plan_, ledger_, piece.tasks);
  visit(piece);
  account(piece.tasks);
}

void PlannedRun::evaluate(const Routing& routing, const Visit& visit) {
  StepSchedule schedule(&forward_plan_, &ledger_, &forecast_, StepSchedule::Extent::kForward);
  walk(schedule, routing, visit);
}

}  // namespace pagoda
