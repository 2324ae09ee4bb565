#include "plan/zebra/action_clock.h"

#include <utility>

namespace pagoda {

ActionClock::ActionClock(ActionTimes times, int32_t first_stream, TimedActions* timed)
    : times_(std::move(times)),
      first_stream_(first_stream),
      timed_(*timed),
      after_(static_cast<size_t>(times_.chunks), -1) {
  newest_.fill(-1);
}

int32_t ActionClock::add(const TimedTask& task, StepStream stream, double seconds,
                         const After& after) {
  timed_.tasks.push_back(task);
  timed_.queue.push_back({first_stream_ + static_cast<int32_t>(stream), seconds, after});
  return static_cast<int32_t>(timed_.queue.size()) - 1;
}

int32_t ActionClock::pass(const TimedTask& of, StepStream lane, const After& after) {
  using enum StepStream;
  const bool leaves = lane == kFasterOut || lane == kFasterOutBack || lane == kSlowerOut;
  return newest_[static_cast<size_t>(lane)] =
             add({leaves ? TaskKind::kSend : TaskKind::kReceive, of.phase, of.layer, of.chunk},
                 lane, 0, after);
}

// Rows go by a wire to a lane, which over a network card has to have come to them.
int32_t ActionClock::travel(const TimedTask& task, const ChunkTimes& times, StepStream wire,
                            double seconds, int32_t sent, StepStream to) {
  const int32_t lane = times.one_card ? newest_[static_cast<size_t>(to)] : -1;
  return add(task, wire, seconds, {sent, lane, -1});
}

void ActionClock::add(const Action& action) {
  const auto chunk = static_cast<int32_t>(action.microbatches.first / action.microbatches.count);
  if (held_ && (held_->task.chunk == chunk || !leads_to_attention(action))) release();
  switch (action.kind) {
    case ActionKind::kAttention:
      attention(action, chunk);
      break;
    case ActionKind::kExperts:
      experts(action, chunk);
      break;
    case ActionKind::kHead:
      head(action, chunk);
      break;
    case ActionKind::kEmbed:
      if (action.phase != Phase::kBackward) break;
      sum({TaskKind::kEmbedBackward, action.phase, -1, chunk}, &SumTimes::embedding_s);
      break;
    case ActionKind::kResidual:
      residual(action, chunk);
      break;
  }
  if (action.kind == ActionKind::kAttention) release();
}

void ActionClock::release() {
  if (!held_) return;
  give_back(*std::exchange(held_, {}));
}

void ActionClock::attention(const Action& action, int32_t chunk) {
  const auto layer = static_cast<int32_t>(action.layer);
  const bool backward = action.phase == Phase::kBackward;
  const TimedTask task{backward ? TaskKind::kAttentionBackward : TaskKind::kAttention, action.phase,
                       layer, chunk};
  const PassSeconds seconds = *times_.of(layer, chunk).faster.attention;
  int32_t& after = after_[static_cast<size_t>(chunk)];
  after = add(task, StepStream::kFaster, seconds_of(seconds, action.phase), {after, -1, -1});
  if (backward) sum(task, &SumTimes::layer_s);
}

// Its time is in that of attention, but not its turn, which waits for what experts gave.
void ActionClock::residual(const Action& action, int32_t chunk) {
  const TimedTask task{TaskKind::kResidual, action.phase, static_cast<int32_t>(action.layer),
                       chunk};
  int32_t& after = after_[static_cast<size_t>(chunk)];
  after = add(task, StepStream::kFaster, 0, {after, -1, -1});
}

void ActionClock::head(const Action& action, int32_t chunk) {
  const TimedTask task{TaskKind::kHead, action.phase, static_cast<int32_t>(action.layer), chunk};
  int32_t& after = after_[static_cast<size_t>(chunk)];
  after = add(task, StepStream::kFaster, times_.of(0, chunk).faster.head_s, {after, -1, -1});
  sum(task, &SumTimes::head_s);
}

// Behind the last chunk, the sum of a dense record. Several devices send theirs behind what leaves
// them before, and take it behind what comes before; what they compute next waits for it.
void ActionClock::sum(const TimedTask& of, double SumTimes::*seconds_of_sum) {
  if (of.chunk + 1 < times_.chunks || !times_.sums) return;
  const double seconds = (*times_.sums).*seconds_of_sum;
  const TimedTask task{TaskKind::kAddSums, of.phase, of.layer, of.chunk};
  const int32_t last = after_[static_cast<size_t>(of.chunk)];
  if (!times_.of(0, of.chunk).faster_exchange) {
    add(task, StepStream::kFaster, seconds, {last, -1, -1});
    return;
  }
  const int32_t sent = pass(task, StepStream::kFasterOut, {last, -1, -1});
  const int32_t there = add(task, StepStream::kBeside, seconds, {sent, -1, -1});
  const int32_t taken = pass(task, StepStream::kFasterIn, {there, -1, -1});
  add(task, StepStream::kFaster, 0, {taken, -1, -1});
}

void ActionClock::experts(const Action& action, int32_t chunk) {
  const auto layer = static_cast<int32_t>(action.layer);
  const ChunkTimes times = times_.of(layer, chunk);
  const bool backward = action.phase == Phase::kBackward;
  const TimedTask task{backward ? TaskKind::kExpertBackward : TaskKind::kExpert, action.phase,
                       layer, chunk};
  int32_t before = after_[static_cast<size_t>(chunk)];
  if (backward) {
    before = add({TaskKind::kRouteReplay, action.phase, layer, chunk}, StepStream::kFaster,
                 times.faster.replay_s, {before, -1, -1});
  }
  const Held part = send(task, times, before);
  if (backward && times.faster.experts) {
    held_ = part;
  } else {
    give_back(part);
  }
}

// Sends rows to the slower devices. Where several devices send some, they are put together where
// they arrive, in the page that experts read, and else they arrive in it.
ActionClock::Held ActionClock::send(const TimedTask& task, const ChunkTimes& times,
                                    int32_t before) {
  using enum StepStream;
  Pages& pages = pages_[static_cast<size_t>(actions_++ % 2)];
  Held part{task, times, -1, pages, &pages};
  part.indexed = pass(task, kFasterOut, {before, -1, -1});
  const int32_t leaves = pass(task, kFasterOut, {pages.taken, -1, -1});
  const bool backward = task.phase == Phase::kBackward;
  const TaskKind kind = backward ? TaskKind::kDispatchBackward : TaskKind::kDispatch;
  const int32_t there = travel({kind, task.phase, task.layer, task.chunk}, times, kToExperts,
                               seconds_of(times.to_experts, task.phase), leaves, kSlowerIn);
  pages.taken = pass(task, kSlowerIn, {there, pages.computed, -1});
  return part;
}

// Sends rows of experts that faster devices have to these, which put them together with their own.
// Returns what the experts wait for.
int32_t ActionClock::exchange_own(const Held& held) {
  using enum StepStream;
  const auto& [task, times, indexed, before, pages] = held;
  if (!times.faster_exchange) return indexed;
  const int32_t own = add(task, kFaster, 0, {indexed, -1, -1});
  const int32_t leaves = pass(task, kFasterOut, {before.own_taken, -1, -1});
  const int32_t there = travel(task, times, times.one_card ? kToExperts : kBeside,
                               seconds_of(times.to_faster_experts, task.phase), leaves, kFasterIn);
  pages->own_taken = pass(task, kFasterIn, {there, -1, -1});
  return pass(task, kFasterIn, {own, -1, -1});
}

// Returns the task with which what the slower devices' experts give is back.
int32_t ActionClock::compute_slower(const Held& held) {
  using enum StepStream;
  const auto& [task, times, indexed, before, pages] = held;
  const bool backward = task.phase == Phase::kBackward;
  const bool several = times.faster_exchange;
  pages->computed =
      add(task, kSlower, seconds_of(times.slower.experts.value_or(PassSeconds()), task.phase),
          {pages->taken, several ? before.packed : before.received, -1});
  const bool last = task.chunk + 1 == times_.chunks;
  if (backward && last && times_.sums) {
    add({TaskKind::kGradient, task.phase, task.layer, task.chunk},
        times_.sums->experts_wait ? kSlowerSums : kSlower, times_.sums->experts_s,
        {pages->computed, -1, -1});
  }
  // Each of several devices gets what is put together for it.
  int32_t given = pages->computed;
  if (several) given = pages->packed = pass(task, kSlowerOut, {given, before.received, -1});
  const TaskKind kind = backward ? TaskKind::kCombineBackward : TaskKind::kCombine;
  const int32_t back = travel({kind, task.phase, task.layer, task.chunk}, times, kToAttention,
                              seconds_of(times.to_attention, task.phase), given, kFasterInBack);
  return pages->received = pass(task, kFasterInBack, {back, -1, -1});
}

// The same of faster devices' experts.
int32_t ActionClock::compute_own(const Held& held, int32_t ready) {
  using enum StepStream;
  const auto& [task, times, indexed, before, pages] = held;
  const int32_t computed = add(task, kFaster, seconds_of(*times.faster.experts, task.phase),
                               {ready, before.own_combined, before.own_packed});
  if (times.faster_exchange) {
    pages->own_packed = pass(task, kFasterOutBack, {computed, before.own_received, -1});
    const int32_t back =
        travel(task, times, kBeside, seconds_of(times.from_faster_experts, task.phase),
               pages->own_packed, kFasterInBack);
    pages->own_received = pass(task, kFasterInBack, {back, -1, -1});
  }
  return pages->own_combined = pass(task, kFasterInBack, {computed, -1, -1});
}

// What experts do with the rows that were sent, and the way back.
void ActionClock::give_back(const Held& held) {
  const bool own = held.times.faster.experts.has_value();
  const int32_t ready = own ? exchange_own(held) : -1;
  int32_t done = compute_slower(held);
  if (own) done = compute_own(held, ready);
  after_[static_cast<size_t>(held.task.chunk)] = done;
}

TimedActions time_actions(const ActionList& actions, ActionTimes times) {
  TimedActions timed;
  ActionClock clock(std::move(times), 0, &timed);
  for (const Action& action : actions) clock.add(action);
  return timed;
}

}  // namespace pagoda
