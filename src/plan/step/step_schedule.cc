#include "plan/step/step_schedule.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace pagoda {
namespace {

void apply(const StepPlan& plan, const PendingUpdates& updates, int64_t record, TaskList& tasks) {
  if (!updates.has_pending(record)) return;
  plan.adam(record, updates.pending(record), updates.has_gradient(record), tasks);
}

}  // namespace

LayerRouting layer_routing(const Routing& routing, int64_t layer, int64_t microbatch) {
  if (microbatch != StepPlan::kAll) return {routing[microbatch][layer]};
  LayerRouting all;
  for (const auto& layers : routing) all.push_back(layers[layer]);
  return all;
}

void apply_overdue(const StepPlan& plan, const PendingUpdates& updates, int64_t first, int64_t last,
                   TaskList& tasks) {
  for (int64_t r = first; r < last; ++r) {
    const bool dense = plan.shape().records[r].expert < 0;
    if (dense || updates.has_gradient(r) || updates.overdue(r)) apply(plan, updates, r, tasks);
  }
}

void apply_all(const StepPlan& plan, const PendingUpdates& updates, TaskList& tasks) {
  for (size_t r = 0; r < plan.shape().records.size(); ++r) {
    apply(plan, updates, static_cast<int64_t>(r), tasks);
  }
}

void walk(StepSchedule& schedule, const RoutingOf& routing_of,
          const std::function<void(const StepPiece&)>& visit) {
  for (StepPiece piece; schedule.next(piece);) {
    visit(piece);
    if (piece.wait != StepPiece::Wait::kResolve) continue;
    schedule.resolve(routing_of(piece.layer, piece.microbatch));
  }
}

StepSchedule::StepSchedule(const StepPlan* plan, const PendingUpdates* updates,
                           ExpertForecast* forecast, Extent extent)
    : plan_(*plan),
      updates_(updates),
      forecast_(forecast),
      extent_(extent),
      tokens_per_expert_(plan->shape().num_layers),
      routing_(plan->shape().microbatches, LayerRouting(plan->shape().num_layers)) {
  CHECK(extent != Extent::kStep || plan->options().training);
  const RunShape& shape = plan->shape();
  if (shape.options.microbatch_major && shape.microbatches > 1) microbatch_ = 0;
  apply_overdue_records(0, shape.layer_record[0]);
  plan_.embed(microbatch_, pending_);
  apply_overdue_records(shape.layer_record[0], shape.layer_record[0] + records_of_layer(0));
}

int64_t StepSchedule::records_of_layer(int64_t layer) const {
  return 1 + (plan_.shape().is_moe[layer] ? plan_.shape().num_experts : 0);
}

// Weights are uploaded after their update has left them in the host, before others take their room.
void StepSchedule::apply_overdue_records(int64_t first_record, int64_t last_record) {
  if (updates_ == nullptr) return;
  std::vector<int64_t> expected;
  // Whole layers take turns in the devices' slots.
  if (!plan_.shape().options.whole_layers) {
    expected = expected_experts(plan_.shape().records[first_record].layer);
  }
  asked_.clear();
  for (int64_t r = first_record; r < last_record; ++r) {
    const size_t before = pending_.size();
    apply_overdue(plan_, *updates_, r, r + 1, pending_);
    const bool on_host = pending_.size() > before && pending_.back().on_host;
    const bool wanted = std::binary_search(expected.begin(), expected.end(), r);
    if (!on_host || !wanted) continue;
    asked_.push_back(r);
    plan_.prefetch({&r, 1}, pending_);
  }
}

// Records whose weights are uploaded before the layer's routing is known, in their order.
std::vector<int64_t> StepSchedule::expected_experts(int64_t layer) const {
  const RunShape& shape = plan_.shape();
  if (layer < 0 || !shape.is_moe[layer] || !shape.options.prefetch) return {};
  if (!shape.options.whole_layers) {
    return forecast_ != nullptr ? forecast_->expected(shape, layer) : std::vector<int64_t>();
  }
  std::vector<int64_t> experts(static_cast<size_t>(shape.num_experts));
  std::iota(experts.begin(), experts.end(), shape.expert(layer, 0));
  return experts;
}

// Adds the tasks up to the point where the layer's routing must be known.
void StepSchedule::begin_layer(StepPiece& piece) {
  const RunShape& shape = plan_.shape();
  const int64_t next = shape.layer_record[layer_] + records_of_layer(layer_);
  const bool last = layer_ + 1 == shape.num_layers;
  const int64_t after = last ? next + 1 : next + records_of_layer(layer_ + 1);
  plan_.forward_layer(layer_, microbatch_, pending_);
  std::vector<int64_t> others = expected_experts(layer_);
  std::erase_if(others, [this](int64_t record) {
    return std::binary_search(asked_.begin(), asked_.end(), record);
  });
  plan_.prefetch(others, pending_);
  if (first_microbatch() == 0) apply_overdue_records(next, after);
  piece.tasks.swap(pending_);
  add_uses(piece.tasks, piece.foreseen.emplace());
  if (begins()) foresee_updates(after, piece);
  if (!shape.is_moe[layer_]) return end_layer();
  piece.wait = StepPiece::Wait::kResolve;
  piece.layer = layer_;
  piece.microbatch = microbatch_;
  at_ = At::kRouting;
}

// Goes on to the next layer, or to the next microbatch.
void StepSchedule::end_layer() {
  at_ = At::kLayer;
  if (++layer_ < plan_.shape().num_layers) return;
  if (microbatch_ == StepPlan::kAll || microbatch_ + 1 == plan_.shape().microbatches) {
    at_ = At::kLayersEnd;
    return;
  }
  layer_ = 0;
  plan_.embed(++microbatch_, pending_);
}

void StepSchedule::resolve(const LayerRouting& routing) {
  const RunShape& shape = plan_.shape();
  const bool all = microbatch_ == StepPlan::kAll;
  CHECK(at_ == At::kRouting, "no layer waits for its routing");
  CHECK(static_cast<int64_t>(routing.size()) == (all ? shape.microbatches : 1));
  const std::vector<int64_t> tokens = pagoda::tokens_per_expert(routing);
  CHECK(static_cast<int64_t>(tokens.size()) == shape.num_experts);
  if (forecast_ != nullptr) forecast_->note(layer_, tokens);
  for (int64_t e = 0; e < shape.num_experts && updates_ != nullptr; ++e) {
    if (tokens[e] > 0) apply(plan_, *updates_, shape.expert(layer_, e), pending_);
  }
  plan_.forward_experts(layer_, microbatch_, routing, pending_);
  for (size_t i = 0; i < routing.size(); ++i) {
    routing_[static_cast<size_t>(first_microbatch()) + i][layer_] = routing[i];
  }
  std::vector<int64_t>& sum = tokens_per_expert_[layer_];
  sum.resize(tokens.size(), 0);
  std::transform(sum.begin(), sum.end(), tokens.begin(), sum.begin(), std::plus<>());
  end_layer();
}

// Foresees the updates of records from first_record on, which are pending already.
void StepSchedule::foresee_updates(int64_t first_record, StepPiece& piece) const {
  const auto end = static_cast<int64_t>(plan_.shape().records.size());
  TaskList later;
  if (updates_ != nullptr) apply_overdue(plan_, *updates_, first_record, end, later);
  add_uses(later, piece.foreseen_later.emplace());
}

// Foresees all uses after the piece: they are known, since all routing is.
void StepSchedule::foresee_rest(StepPiece& piece) const {
  std::vector<PageUse> uses;
  add_uses(piece.tasks, uses);
  StepSchedule ahead = *this;
  for (StepPiece later; ahead.next(later);) add_uses(later.tasks, uses);
  piece.foreseen = std::move(uses);
}

bool StepSchedule::next(StepPiece& piece) {
  CHECK(at_ != At::kRouting, "layer %lld is not resolved", static_cast<long long>(layer_));
  piece = {};
  const bool step = extent_ == Extent::kStep;
  if (begins()) {
    const bool of_steps = step || !plan_.shape().training;
    piece.cycle = of_steps ? StepPiece::Cycle::kBegins : StepPiece::Cycle::kBetweenSteps;
    piece.kept = std::exchange(kept_, std::nullopt);
  }
  switch (at_) {
    case At::kRouting:
    case At::kEnd: return false;
    case At::kLayer: begin_layer(piece); return true;
    case At::kLayersEnd:
      piece.tasks.swap(pending_);
      if (step) piece.wait = StepPiece::Wait::kLayersDone;
      at_ = extent_ == Extent::kLayers ? At::kEnd : At::kHead;
      foresee_rest(piece);
      return true;
    case At::kHead:
      plan_.head(piece.tasks);
      if (step) piece.wait = StepPiece::Wait::kForwardDone;
      at_ = step ? At::kBackward : At::kEnd;
      return true;
    case At::kBackward:
      --layer_;
      plan_.backward_layer(layer_, layer_routing(routing_, layer_, StepPlan::kAll), piece.tasks);
      if (layer_ == 0) at_ = At::kEmbedBackward;
      return true;
    case At::kEmbedBackward:
      plan_.embed_backward(piece.tasks);
      at_ = At::kEnd;
      return true;
  }
  return false;
}

}  // namespace pagoda
