#include "plan/step/steady_run.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/step/pinning.h"

namespace pagoda {

namespace {

// Returns an expert's even part of what so many microbatches choose, at least one. What does not
// divide goes to other experts at each turn.
int64_t share_of(const RunShape& shape, int64_t microbatches, int64_t turn, int64_t expert) {
  const int64_t chosen = microbatches * shape.microbatch_tokens * shape.experts_per_token;
  const int64_t place = (expert + turn) % shape.num_experts;
  const int64_t end = (place + 1) * chosen / shape.num_experts;
  return std::max<int64_t>(1, end - place * chosen / shape.num_experts);
}

}  // namespace

SteadyRun::SteadyRun(const StepPlan* plan, Tokens tokens, ExpertForecast* forecast)
    : plan_(*plan),
      forecast_(forecast),
      routing_(plan->shape().microbatches, LayerRouting(plan->shape().num_layers)),
      gradients_(plan->shape().records.size()),
      copies_(plan->shape()) {
  const RunShape& shape = plan->shape();
  const bool by_turns = tokens != Tokens::kEven && !shape.options.microbatch_major;
  const int64_t together = shape.round_microbatches();
  const auto count = [&](int64_t b, int64_t e) {
    if (tokens == Tokens::kOne) return int64_t{1};
    return by_turns ? share_of(shape, together, b / together, e) : share_of(shape, 1, b, e);
  };
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    for (int64_t b = 0; b < shape.microbatches && shape.is_moe[l]; ++b) {
      for (int64_t e = 0; e < shape.num_experts; ++e) {
        const bool chosen = !by_turns || e % together == b % together;
        routing_[b][l].push_back(chosen ? count(b, e) : 0);
      }
    }
  }
}

void SteadyRun::Gradients::account(const TaskList& tasks) {
  for (const Task& task : tasks) {
    if (task.kind == TaskKind::kGradient) make(task.record);
    if (task.kind == TaskKind::kAdam) waits_[task.record] = 0;
  }
}

void SteadyRun::pin(const std::vector<SlotClass>& classes, double share) {
  // Every expert has the same load.
  std::vector<std::vector<int64_t>> loads(plan_.shape().num_layers);
  for (int64_t l = 0; l < plan_.shape().num_layers; ++l) {
    loads[l] = tokens_per_expert(layer_routing(routing_, l));
  }
  pinned_ = pinned_weights(plan_.shape(), plan_.pages(), classes, loads, share);
}

// The step leaves a gradient of each record that trains, which waits unless the step applies it as
// well. Copies of weights are good until an update.
void SteadyRun::skip_first() {
  CHECK(forecast_ == nullptr);
  const RunShape& shape = plan_.shape();
  const bool training = plan_.options().training;
  const bool waits = !shape.eager_adam && !shape.options.optimizer_at_end;
  for (int64_t r = 0; r < std::ssize(shape.records); ++r) {
    const bool trains = training && shape.trains(r);
    if (trains && waits) gradients_.make(r);
    copies_.set_good(r, !trains || waits);
  }
}

void SteadyRun::step(const Visit& visit) {
  const bool training = plan_.options().training;
  StepSchedule schedule(&plan_, training ? &gradients_ : nullptr, forecast_,
                        training ? PassExtent::kStep : PassExtent::kForward, &copies_);
  if (!pinned_.empty()) schedule.keep(pinned_);
  if (!foresees_) schedule.foresee_nothing();
  const auto routing = [this](int64_t layer, Microbatches microbatches) {
    return layer_routing(routing_, layer, microbatches);
  };
  walk(schedule, routing, [&](const StepPiece& piece) {
    visit(piece);
    account(piece);
  });
  if (training && plan_.shape().options.optimizer_at_end) update(StepPiece(), visit);
}

void SteadyRun::drain(const Visit& visit) {
  StepPiece piece;
  piece.cycle = StepPiece::Cycle::kBetweenSteps;
  update(std::move(piece), visit);
}

void SteadyRun::update(StepPiece piece, const Visit& visit) {
  apply_all(plan_, gradients_, piece.tasks);
  take_own_part(plan_.shape(), piece);
  add_uses(piece.tasks, piece.foreseen.emplace());
  visit(piece);
  account(piece);
}

void SteadyRun::account(const StepPiece& piece) {
  gradients_.account(piece.all_tasks());
  copies_.account(piece.all_tasks());
}

bool layer_buffers_stay(const RunShape& shape, const PageTable& pages,
                        const std::vector<SlotClass>& classes) {
  const DeviceRange own = shape.own_devices();
  for (int d = own.first; d < own.end(); ++d) {
    const std::vector<int64_t> all = pages_on_device(shape, pages, d);
    for (size_t c = 0; c < classes.size(); ++c) {
      if (pages.classes[c].kind != PageKind::kLayerBuffer) continue;
      if (classes[c].device_slots[d - own.first] < all[c]) return false;
    }
  }
  return true;
}

namespace {

constexpr int kStepsUntilSettled = 3;

// Blocks of an expert use the same pages, but for those that go between devices and for in-layer
// buffers that move.
SteadyRun::Tokens tokens_that_matter(const StepPlan& plan, const std::vector<SlotClass>& classes) {
  const bool one =
      plan.shape().devices == 1 && layer_buffers_stay(plan.shape(), plan.pages(), classes);
  return one ? SteadyRun::Tokens::kOne : SteadyRun::Tokens::kEven;
}

// A steady run whose pages have found their places.
struct SettledRun {
  ExpertForecast forecast;
  SteadyRun run;
  Replay replay;

  // The plan is not owned.
  SettledRun(const StepPlan* plan, const std::vector<SlotClass>& classes, double pinned_share);
  PageTraffic step();
  void place(const StepPiece& piece);
  void save(const PageTable& pages);
};

SettledRun::SettledRun(const StepPlan* plan, const std::vector<SlotClass>& classes,
                       double pinned_share)
    : forecast(plan->shape(), plan->pages(), classes),
      run(plan, tokens_that_matter(*plan, classes), &forecast),
      replay(&plan->pages(), all_on_disk(plan->shape(), plan->pages(), classes)) {
  step();
  run.pin(classes, pinned_share);
  for (int i = 1; i < kStepsUntilSettled; ++i) step();
}

PageTraffic SettledRun::step() {
  const PageTraffic before = replay.traffic();
  run.step([this](const StepPiece& piece) { place(piece); });
  return replay.traffic() - before;
}

void SettledRun::place(const StepPiece& piece) {
  foresee(piece, replay);
  for (const Task& task : piece.tasks) replay.place(task);
}

void SettledRun::save(const PageTable& pages) {
  run.drain([this](const StepPiece& piece) { place(piece); });
  for (PageId page = 0; page < pages.pages.size(); ++page) {
    if (pages.pages[page].durable) replay.flush(page);
  }
}

}  // namespace

PageTraffic steady_step(const StepPlan& plan, const std::vector<SlotClass>& classes) {
  return SettledRun(&plan, classes, 0).step();
}

SteadyTraffic steady_traffic(const StepPlan& plan, const std::vector<SlotClass>& classes) {
  SettledRun settled(&plan, classes, plan.shape().pinned_share);
  SteadyTraffic traffic;
  traffic.step = settled.step();
  const PageTraffic before = settled.replay.traffic();
  settled.save(plan.pages());
  settled.step();
  traffic.checkpoint = settled.replay.traffic() - before - traffic.step;
  return traffic;
}

}  // namespace pagoda
