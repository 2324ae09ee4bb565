#include "tests/testing/plan/dry_run.h"

namespace pagoda {
namespace {

constexpr double kLearningRate = 1e-3;  // any: nothing is computed

RoutingOf of(const Routing& routing) {
  return [&routing](int64_t layer, Microbatches microbatches) {
    return layer_routing(routing, layer, microbatches);
  };
}

}  // namespace

DryRun::DryRun(const RunShape& shape, const PageTable& pages, const std::vector<SlotClass>& classes,
               bool state_on_device, Ledger ledger)
    : copies_(shape),
      passes_(shape, pages, classes, state_on_device, &copies_),
      ledger_(std::move(ledger)) {}

void DryRun::run(const StepPiece& piece, const Visit& visit) {
  visit(piece);
  passes_.issue(piece, ledger_);
  for (const Task& task : piece.tasks) {
    if (task.kind == TaskKind::kAdam) ledger_.apply(task.record);
  }
}

void DryRun::train(const Routing& routing, const Visit& visit, bool skip) {
  StepSchedule schedule = passes_.begin(PassExtent::kStep, ledger_);
  walk(schedule, of(routing), [&](const StepPiece& piece) {
    run(piece, visit);
    if (piece.wait == StepPiece::Wait::kLayersDone) passes_.layers_done(kLearningRate, ledger_);
  });
  passes_.end_step(schedule.tokens_per_expert());
  if (!skip) passes_.update(kLearningRate, 1.0f, ledger_);
  const StepPiece rest = passes_.between_steps(ledger_);
  if (!rest.all_tasks().empty()) run(rest, visit);
}

void DryRun::drain(const Visit& visit) { run(passes_.drain(ledger_), visit); }

void DryRun::evaluate(const Routing& routing, const Visit& visit) {
  StepSchedule schedule = passes_.begin(PassExtent::kForward, ledger_);
  walk(schedule, of(routing), [&](const StepPiece& piece) { run(piece, visit); });
}

}  // namespace pagoda
