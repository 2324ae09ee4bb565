#include "tests/testing/hetermoe/paper_clock.h"

#include <utility>

namespace pagoda {
namespace {

constexpr PaperClock::After kNone = {-1, -1, -1};

std::optional<double> seconds_of(const std::optional<PassSeconds>& pass, Phase phase) {
  if (!pass) return {};
  return seconds_of(*pass, phase);
}

}  // namespace

PaperClock::PaperClock(PaperTimes times, int32_t first_stream, TimedActions* timed)
    : times_(std::move(times)),
      first_stream_(first_stream),
      timed_(*timed),
      after_(static_cast<size_t>(times_.chunks), kNone) {}

int32_t PaperClock::add(const TimedTask& task, PaperStream stream, double seconds,
                        const After& after) {
  timed_.tasks.push_back(task);
  timed_.queue.push_back({first_stream_ + static_cast<int32_t>(stream), seconds, after});
  return static_cast<int32_t>(timed_.queue.size()) - 1;
}

PaperClock::After PaperClock::compute(const TimedTask& task, std::optional<double> faster_s,
                                      std::optional<double> slower_s, const After& after) {
  After done = kNone;
  if (faster_s) done[0] = add(task, PaperStream::kFaster, *faster_s, after);
  if (slower_s) done[1] = add(task, PaperStream::kSlower, *slower_s, after);
  return done;
}

void PaperClock::add(const Action& action) {
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
    case ActionKind::kResidual:
      break;  // no device is held up by them
  }
  if (action.kind == ActionKind::kAttention) release();
}

void PaperClock::release() {
  if (!held_) return;
  give_back(*std::exchange(held_, {}));
}

void PaperClock::attention(const Action& action, int32_t chunk) {
  const auto layer = static_cast<int32_t>(action.layer);
  const ChunkTimes times = times_.of(layer, chunk);
  const bool backward = action.phase == Phase::kBackward;
  const TimedTask task{backward ? TaskKind::kAttentionBackward : TaskKind::kAttention, action.phase,
                       layer, chunk};
  After& after = after_[static_cast<size_t>(chunk)];
  after = compute(task, seconds_of(times.faster.attention, action.phase),
                  seconds_of(times.slower.attention, action.phase), after);
  if (backward) sum(PaperStream::kSums, times_.attention_sum_s, after, task);
}

void PaperClock::head(const Action& action, int32_t chunk) {
  const ChunkTimes times = times_.of(0, chunk);
  const auto seconds = [](const ChunkTimes::Kind& kind) {
    return kind.attention ? std::optional(kind.head_s) : std::nullopt;
  };
  After& after = after_[static_cast<size_t>(chunk)];
  after = compute({TaskKind::kHead, Phase::kForward, static_cast<int32_t>(action.layer), chunk},
                  seconds(times.faster), seconds(times.slower), after);
}

void PaperClock::experts(const Action& action, int32_t chunk) {
  const auto layer = static_cast<int32_t>(action.layer);
  const ChunkTimes times = times_.of(layer, chunk);
  const Phase phase = action.phase;
  const bool backward = phase == Phase::kBackward;
  const auto task = [&](TaskKind kind) { return TimedTask{kind, phase, layer, chunk}; };
  After before = after_[static_cast<size_t>(chunk)];
  if (backward) {
    const auto replay = [](const ChunkTimes::Kind& kind) {
      return kind.attention ? std::optional(kind.replay_s) : std::nullopt;
    };
    before =
        compute(task(TaskKind::kRouteReplay), replay(times.faster), replay(times.slower), before);
  }
  const TaskKind there = backward ? TaskKind::kDispatchBackward : TaskKind::kDispatch;
  if (backward && times_.send_again) {
    add(task(TaskKind::kDispatch), PaperStream::kToExperts, times.to_experts.forward_s, before);
  }
  const int32_t arrival =
      add(task(there), PaperStream::kToExperts, seconds_of(times.to_experts, phase), before);
  const Held held{task(backward ? TaskKind::kExpertBackward : TaskKind::kExpert), times, arrival,
                  before};
  if (backward && times.faster.experts && times.slower.experts) {
    held_ = held;
  } else {
    give_back(held);
  }
}

// What experts do with the rows that were sent, and the way back.
void PaperClock::give_back(const Held& held) {
  const auto& [task, times, arrival, before] = held;
  const bool backward = task.phase == Phase::kBackward;
  TimedTask back = task;
  back.kind = backward ? TaskKind::kCombineBackward : TaskKind::kCombine;
  const After arrived = {arrival, -1, -1};
  const After own = compute(task, seconds_of(times.faster.experts, task.phase), {},
                            times.faster_exchange ? arrived : before);
  const After other = compute(task, {}, seconds_of(times.slower.experts, task.phase), arrived);
  const After given = {arrival, times.faster_exchange ? own[0] : -1, other[1]};
  const int32_t combined =
      add(back, PaperStream::kToAttention, seconds_of(times.to_attention, task.phase), given);
  after_[static_cast<size_t>(task.chunk)] = {combined, times.faster_exchange ? -1 : own[0], -1};
  if (!backward) return;
  sum(PaperStream::kSlowerSums, times_.experts_sum_s, {own[0], other[1], -1}, task);
}

// Begins with the gradients of the last chunk.
void PaperClock::sum(PaperStream stream, double seconds, const After& after, const TimedTask& of) {
  if (of.chunk + 1 < times_.chunks || seconds == 0) return;
  add({TaskKind::kAddSums, of.phase, of.layer, of.chunk}, stream, seconds, after);
}

TimedActions time_on_paper(const ActionList& actions, PaperTimes times) {
  TimedActions timed;
  PaperClock clock(std::move(times), 0, &timed);
  for (const Action& action : actions) clock.add(action);
  return timed;
}

}  // namespace pagoda
