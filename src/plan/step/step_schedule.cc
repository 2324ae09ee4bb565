#include "plan/step/step_schedule.h"

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "plan/step/expert_seats.h"

namespace pagoda {
namespace {

bool waits_for_update(const StepPlan& plan, const PendingUpdates& updates, int64_t record) {
  return updates.has_pending(record) && plan.shape().trains(record);
}

void apply(const StepPlan& plan, const PendingUpdates& updates, int64_t record, TaskList& tasks) {
  if (!waits_for_update(plan, updates, record)) return;
  plan.adam(record, updates.pending(record), updates.has_gradient(record), tasks);
}

}  // namespace

LayerRouting layer_routing(const Routing& routing, int64_t layer, Microbatches microbatches) {
  LayerRouting chosen;
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    chosen.push_back(routing[static_cast<size_t>(b)][static_cast<size_t>(layer)]);
  }
  return chosen;
}

LayerRouting layer_routing(const Routing& routing, int64_t layer) {
  return layer_routing(routing, layer, {0, static_cast<int64_t>(routing.size())});
}

void take_own_part(const RunShape& shape, StepPiece& piece) {
  if (shape.ranks() == 1) return;
  piece.others = std::move(piece.tasks);
  piece.tasks = own_part(shape, piece.others);
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
    schedule.resolve(routing_of(piece.layer, piece.microbatches));
  }
}

StepSchedule::StepSchedule(const StepPlan* plan, const PendingUpdates* updates,
                           ExpertForecast* forecast, PassExtent extent, const WeightCopies* copies)
    : plan_(*plan),
      updates_(updates),
      forecast_(forecast),
      extent_(extent),
      actions_(make_actions(plan->shape(), extent)),
      experts_begun_(static_cast<size_t>(plan->shape().stages.count), 0),
      tokens_per_expert_(plan->shape().num_layers),
      routing_(plan->shape().microbatches, LayerRouting(plan->shape().num_layers)) {
  CHECK(extent != PassExtent::kStep || plan->options().training);
  CHECK(copies != nullptr || plan->shape().ranks() == 1);
  if (copies != nullptr) copies_ = *copies;
  for (size_t i = 0; i < actions_.size(); ++i) {
    const Action& action = actions_[i];
    const bool of_layers = action.phase == Phase::kForward && action.kind != ActionKind::kHead;
    if (of_layers) forward_end_ = i + 1;
  }
}

// The action needs a routing that is not known.
bool StepSchedule::unresolved(size_t action) const {
  if (action == actions_.size()) return false;
  const Action& a = actions_[action];
  return a.kind == ActionKind::kExperts && a.phase == Phase::kForward &&
         routing_[static_cast<size_t>(a.microbatches.first)][static_cast<size_t>(a.layer)].empty();
}

int64_t StepSchedule::records_of_layer(int64_t layer) const {
  return 1 + (plan_.shape().is_moe[layer] ? plan_.shape().num_experts : 0);
}

// The piece's tasks so far are behind the schedule.
void StepSchedule::account(const TaskList& tasks) {
  if (copies_) copies_->account(std::span(tasks).subspan(accounted_));
  accounted_ = tasks.size();
}

StepSchedule::Uses StepSchedule::of_record(Uses uses, int64_t record) {
  const auto [first, end] =
      std::equal_range(uses.begin(), uses.end(), ExpertUse{record, 0},
                       [](const ExpertUse& a, const ExpertUse& b) { return a.record < b.record; });
  return {first, end};
}

// Applies the record's update if it should not wait, and sends weights that others lack: copied
// ones, and those of the layer's guests, unless an update waits for their routing.
// True if the host has updated it.
bool StepSchedule::apply_and_send(int64_t record, Uses guests, TaskList& tasks) const {
  const size_t before = tasks.size();
  if (updates_ != nullptr) apply_overdue(plan_, *updates_, record, record + 1, tasks);
  const bool updated = tasks.size() > before;
  const bool on_host = updated && tasks.back().on_host;
  if (copies_ && plan_.shape().is_copied(record)) {
    plan_.send_weights(record, *copies_, updated, tasks);
  }
  const bool waits = !updated && updates_ != nullptr && waits_for_update(plan_, *updates_, record);
  const Uses of = of_record(guests, record);
  if (!waits && !of.empty()) plan_.send_guests(of, Phase::kForward, *copies_, updated, tasks);
  return on_host;
}

// Makes records ready for use: updated, and dense weights with all that attend. An expert's weights
// are uploaded after their update has left them in the host, before others take their room.
void StepSchedule::make_ready(int64_t first_record, int64_t last_record, TaskList& tasks) {
  if (updates_ == nullptr && plan_.shape().ranks() == 1) return;
  const int64_t layer = plan_.shape().records[first_record].layer;
  std::vector<ExpertUse> expected;
  // Whole layers take turns in the devices' slots.
  if (!plan_.shape().options.whole_layers) expected = expected_experts(layer);
  const std::vector<ExpertUse> guests = expected_guests(layer);
  asked_.clear();
  for (int64_t r = first_record; r < last_record; ++r) {
    const bool on_host = apply_and_send(r, guests, tasks);
    const Uses of = of_record(expected, r);
    if (!on_host || of.empty()) continue;
    asked_.push_back(r);
    plan_.prefetch(of, tasks);
  }
}

// The weights that are uploaded before the layer's routing is known, in the order of their records.
std::vector<ExpertUse> StepSchedule::expected_experts(int64_t layer) const {
  const RunShape& shape = plan_.shape();
  if (layer < 0 || !shape.is_moe[layer] || !shape.options.prefetch) return {};
  if (!shape.options.whole_layers) {
    return forecast_ != nullptr ? forecast_->expected(shape, layer) : std::vector<ExpertUse>();
  }
  const std::vector<int> seats = layer_seats(shape, layer, {});
  std::vector<ExpertUse> uses;
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    uses.push_back({shape.expert(layer, e), seats[static_cast<size_t>(e)]});
  }
  return uses;
}

// Whether guests get their weights a layer ahead of use.
bool StepSchedule::sends_ahead() const {
  const RunShape& shape = plan_.shape();
  const bool may = shape.options.prefetch && shape.options.send_ahead;
  return may && copies_ && shape.has_far_guests() && shape.guest_layers > 0;
}

// The guests whose weights leave before the layer's routing is known.
std::vector<ExpertUse> StepSchedule::expected_guests(int64_t layer) const {
  const RunShape& shape = plan_.shape();
  const bool guesses = sends_ahead() && forecast_ != nullptr;
  if (!guesses || layer < 0 || !shape.is_moe[layer]) return {};
  return forecast_->expected_guests(shape, layer);
}

// The guests of the next layer down with experts, whose routing is known.
std::vector<ExpertUse> StepSchedule::guests_below(int64_t layer) const {
  if (!sends_ahead()) return {};
  const RunShape& shape = plan_.shape();
  for (--layer; layer >= 0; --layer) {
    if (!shape.is_moe[layer]) continue;
    return far_guests(shape, layer, all_microbatches(shape), layer_routing(routing_, layer));
  }
  return {};
}

void StepSchedule::embed(const Action& action, TaskList& tasks) {
  const int64_t first_layer = plan_.shape().layer_record[0];
  const bool begins = action.microbatches.first == 0;
  if (begins) make_ready(0, first_layer, tasks);
  plan_.embed(action.microbatches, tasks);
  if (begins) make_ready(first_layer, first_layer + records_of_layer(0), tasks);
}

// Behind the layer's own tasks, uploads what it is expected to choose, and applies the updates of
// the next layer.
void StepSchedule::attention(const Action& action, StepPiece& piece) {
  const RunShape& shape = plan_.shape();
  const int64_t l = action.layer;
  const int64_t next = shape.layer_record[l] + records_of_layer(l);
  const bool last = l + 1 == shape.num_layers;
  const int64_t after = last ? next + 1 : next + records_of_layer(l + 1);
  const bool first_microbatch = action.microbatches.first == 0;
  plan_.forward_attention(l, action.microbatches, piece.tasks);
  std::vector<ExpertUse> others = expected_experts(l);
  std::erase_if(others, [this](const ExpertUse& use) {
    return std::binary_search(asked_.begin(), asked_.end(), use.record);
  });
  plan_.prefetch(others, piece.tasks);
  if (first_microbatch) make_ready(next, after, piece.tasks);
  if (l == 0 && first_microbatch && foresees_) foresee_updates(after, piece);
}

// How many actions of experts its stage has begun before.
int64_t StepSchedule::begin_experts(const Action& action) {
  return experts_begun_[static_cast<size_t>(plan_.shape().stage_of(action.layer))]++;
}

void StepSchedule::experts(const Action& action, TaskList& tasks) {
  const RunShape& shape = plan_.shape();
  const LayerRouting routing = layer_routing(routing_, action.layer, action.microbatches);
  const std::vector<int64_t> tokens = pagoda::tokens_per_expert(routing);
  for (int64_t e = 0; e < shape.num_experts && updates_ != nullptr; ++e) {
    const int64_t record = shape.expert(action.layer, e);
    const size_t before = tasks.size();
    if (tokens[e] > 0) apply(plan_, *updates_, record, tasks);
    const bool changed = tasks.size() > before;
    if (changed && copies_ && shape.is_copied(record)) {
      plan_.send_weights(record, *copies_, true, tasks);
    }
  }
  account(tasks);
  plan_.forward_experts(action.layer, action.microbatches, routing, tasks,
                        {begin_experts(action), copies()});
}

void StepSchedule::resolve(const LayerRouting& routing) {
  CHECK(unresolved(next_), "no layer waits for its routing");
  const Action& routed = actions_[next_];
  CHECK(static_cast<int64_t>(routing.size()) == routed.microbatches.count);
  const std::vector<int64_t> tokens = pagoda::tokens_per_expert(routing);
  CHECK(static_cast<int64_t>(tokens.size()) == plan_.shape().num_experts);
  for (size_t i = 0; i < routing.size(); ++i) {
    routing_[static_cast<size_t>(routed.microbatches.first) + i][routed.layer] = routing[i];
  }
  std::vector<int64_t>& sum = tokens_per_expert_[routed.layer];
  sum.resize(tokens.size(), 0);
  std::transform(sum.begin(), sum.end(), tokens.begin(), sum.begin(), std::plus<>());
  if (forecast_ == nullptr) return;
  const auto unknown = std::find_if(routing_.begin(), routing_.end(), [&](const auto& layers) {
    return layers[static_cast<size_t>(routed.layer)].empty();
  });
  forecast_->note(routed.layer,
                  layer_routing(routing_, routed.layer, {0, unknown - routing_.begin()}));
}

// Foresees the updates of records from first_record on, which are pending already.
void StepSchedule::foresee_updates(int64_t first_record, StepPiece& piece) const {
  const auto end = static_cast<int64_t>(plan_.shape().records.size());
  TaskList later;
  std::vector<ExpertUse> guests;
  for (int64_t r = first_record; r < end; ++r) {
    const RecordShape& record = plan_.shape().records[r];
    if (record.expert < 0) guests = expected_guests(record.layer);  // those of its layer follow
    apply_and_send(r, guests, later);
  }
  add_uses(later, piece.foreseen_later.emplace());
}

// Foresees all uses after the piece: they are known, since all routing is.
void StepSchedule::foresee_rest(StepPiece& piece) const {
  std::vector<PageUse> uses;
  pagoda::add_uses(piece.tasks, uses);
  StepSchedule ahead = *this;
  for (StepPiece later; ahead.next(later);) pagoda::add_uses(later.tasks, uses);
  piece.foreseen = std::move(uses);
}

// Holds back what devices that attend do of it, so that others have their rows sooner than these
// end with attention, and need not wait for them.
void StepSchedule::backward_experts(const Action& action, TaskList& tasks) {
  const LayerRouting routing =
      layer_routing(routing_, action.layer, {0, action.microbatches.end()});
  const std::vector<ExpertUse> ahead = guests_below(action.layer);
  const size_t own = plan_.backward_experts(action.layer, action.microbatches, routing, tasks,
                                            {begin_experts(action), copies(), ahead});
  const auto from = tasks.begin() + static_cast<std::ptrdiff_t>(own);
  held_.assign(from, tasks.end());
  held_of_ = action.microbatches;
  tasks.erase(from, tasks.end());
}

void StepSchedule::add(const Action& action, StepPiece& piece) {
  if (action.microbatches == held_of_ || !leads_to_attention(action)) release(piece.tasks);
  add_now(action, piece);
  if (action.kind == ActionKind::kAttention) release(piece.tasks);
  account(piece.tasks);
}

void StepSchedule::release(TaskList& tasks) {
  tasks.insert(tasks.end(), held_.begin(), held_.end());
  held_.clear();
}

void StepSchedule::add_now(const Action& action, StepPiece& piece) {
  if (action.phase == Phase::kForward) {
    switch (action.kind) {
      case ActionKind::kEmbed:
        return embed(action, piece.tasks);
      case ActionKind::kAttention:
        return attention(action, piece);
      case ActionKind::kExperts:
        return experts(action, piece.tasks);
      case ActionKind::kResidual:
        return plan_.residual(action.layer, action.microbatches, piece.tasks);
      case ActionKind::kHead:
        return plan_.head(action.microbatches, piece.tasks);
    }
  }
  switch (action.kind) {
    case ActionKind::kExperts:
      return backward_experts(action, piece.tasks);
    case ActionKind::kAttention:
      return plan_.backward_attention(action.layer, action.microbatches, piece.tasks);
    case ActionKind::kEmbed:
      return plan_.embed_backward(action.microbatches, piece.tasks);
    case ActionKind::kHead:
    case ActionKind::kResidual:
      break;
  }
  CHECK(false, "it has no backward of its own");
}

bool StepSchedule::ends_piece(const Action& newest) const {
  if (newest.phase == Phase::kBackward || newest.kind == ActionKind::kHead) return true;
  return newest.kind == ActionKind::kAttention || next_ == forward_end_ || unresolved(next_);
}

// The tasks of actions up to one that must wait, which come to none if the next one must.
void StepSchedule::add_tasks(StepPiece& piece) {
  const bool in_forward = next_ < forward_end_;
  while (!unresolved(next_)) {
    const Action& newest = actions_[next_++];
    add(newest, piece);
    const bool head = newest.kind == ActionKind::kHead;
    if (head && extent_ == PassExtent::kStep) {
      piece.wait = StepPiece::Wait::kForwardDone;
      piece.microbatches = newest.microbatches;
    }
    if (ends_piece(newest)) break;
  }
  take_own_part(plan_.shape(), piece);
  if (!in_forward) return;
  const bool ends = next_ == forward_end_;
  if (ends && extent_ == PassExtent::kStep) piece.wait = StepPiece::Wait::kLayersDone;
  if (!foresees_) return;
  ends ? foresee_rest(piece) : pagoda::add_uses(piece.tasks, piece.foreseen.emplace());
}

bool StepSchedule::next(StepPiece& piece) {
  CHECK(!asked_routing_ || !unresolved(next_), "a layer is not resolved");
  piece = {};
  accounted_ = 0;
  if (next_ == actions_.size()) return false;
  if (next_ == 0) {
    const bool of_steps = extent_ == PassExtent::kStep || !plan_.shape().training;
    piece.cycle = of_steps ? StepPiece::Cycle::kBegins : StepPiece::Cycle::kBetweenSteps;
    piece.kept = std::exchange(kept_, std::nullopt);
  }
  add_tasks(piece);
  asked_routing_ = piece.wait == StepPiece::Wait::kGoOn && unresolved(next_);
  if (asked_routing_) {
    piece.wait = StepPiece::Wait::kResolve;
    piece.layer = actions_[next_].layer;
    piece.microbatches = actions_[next_].microbatches;
  }
  return true;
}

}  // namespace pagoda
