#include "tests/testing/planned_run.h"

namespace pagoda {

PlacedTask place(Replay& replay, const Task& task) {
  const Replay::Placed placed = replay.place(task);
  return {task,
          {placed.moves.begin(), placed.moves.end()},
          {placed.slots.begin(), placed.slots.end()}};
}

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

RunShape random_shape(std::mt19937& random, int devices) {
  const auto pick = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  RunShape shape;
  shape.num_layers = 1 + pick(4);
  shape.num_experts = 2 + pick(8);
  shape.hidden_size = 16 + 16 * pick(4);
  shape.experts_per_token = 1 + pick(2);
  shape.tied_embeddings = pick(2) == 0;
  shape.dtype_bytes = 2 + 2 * pick(2);
  shape.microbatches = 1 + pick(4);
  shape.microbatch_tokens = 10 + pick(300);
  shape.row_block = 16 << pick(5);
  shape.devices = devices;
  const int64_t table = 20000, dense = 12000, expert = 5000 + 2000 * pick(4);
  shape.records.push_back({table});
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    shape.is_moe.push_back(pick(4) != 0);
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({shape.is_moe[l] ? dense : dense + 3000, l});
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      shape.records.push_back({expert, l, e, static_cast<int>(e % devices)});
    }
  }
  shape.records.push_back({shape.tied_embeddings ? 64 : table + 64});
  for (RecordShape& record : shape.records) record.state_bytes = 10 * record.num_elements;
  return shape;
}

Routing random_routing(std::mt19937& random, const RunShape& shape) {
  Routing routing(shape.num_layers);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (!shape.is_moe[l]) continue;
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      const auto most = static_cast<uint64_t>(random() % 2 == 0 ? 3 * shape.row_block : 3);
      routing[l].push_back(random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % most));
    }
  }
  return routing;
}

}  // namespace pagoda
