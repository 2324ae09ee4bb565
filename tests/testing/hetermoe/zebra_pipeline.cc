#include "tests/testing/hetermoe/zebra_pipeline.h"

#include <cmath>
#include <deque>
#include <string>
#include <utility>

#include "base/check.h"
#include "plan/refusals.h"
#include "plan/step/pipeline_actions.h"
#include "plan/zebra/zebra_search.h"

namespace pagoda {
namespace {

constexpr Refusal invalid_pipeline("zebra pipeline");

// The tasks of one stage for all chunks, and of its links to other stages. In the stage's lists and
// clock the microbatches of all chunks are counted on.
class ZebraStage {
 public:
  // `pipeline` and `timed` must outlive it.
  ZebraStage(const ZebraPipeline& pipeline, int32_t stage, const Lags& lags, TimedActions* timed);

  // Appends the tasks that are ready, in order; returns whether there was any.
  bool advance(ZebraStage* next, ZebraStage* before);
  bool done() const { return next_ == actions_.size(); }

 private:
  void add(const ActionList& order, const Lags& lags);
  // Whether the action has to do with the stage's input, or with its output.
  bool is_bottom(const Action& action) const;
  bool is_top(const Action& action) const;
  void send(const Action& action, ZebraStage* to);
  bool last() const { return stage_ + 1 == stages_; }

  int32_t stage_, stages_;
  double boundary_s_;
  const ZebraGroup& group_;
  TimedActions& timed_;
  ActionList actions_;
  size_t next_ = 0;
  PaperClock clock_;
  std::vector<uint8_t> received_[2];  // [phase][microbatch] from the stage before it in the phase
};

PaperTimes stage_times(const ZebraGroup& group, int32_t chunks) {
  PaperTimes times = zebra_times(group);
  times.chunks *= chunks;
  times.of = [of = times.of, count = group.microbatches](int32_t layer, int32_t microbatch) {
    return of(layer, microbatch % count);
  };
  return times;
}

// A stage's forwards and backwards of chunks: what it would do with one layer in each stage.
ActionList chunk_order(const ZebraPipeline& pipeline, int32_t stage) {
  RunShape shape;
  const auto stages = static_cast<int>(pipeline.stages.size());
  shape.num_layers = stages;
  shape.is_moe.assign(pipeline.stages.size(), 0);
  shape.microbatches = shape.sums.chunks = pipeline.chunks;
  shape.stages = divide_into_stages(stages, pipeline.order, stages, stages);
  ActionList order = stage_orders(shape, stage, PassExtent::kStep).attention;
  std::erase_if(order, [](const Action& action) { return action.kind == ActionKind::kHead; });
  return order;
}

ZebraStage::ZebraStage(const ZebraPipeline& pipeline, int32_t stage, const Lags& lags,
                       TimedActions* timed)
    : stage_(stage),
      stages_(static_cast<int32_t>(pipeline.stages.size())),
      boundary_s_(pipeline.boundary_s),
      group_(pipeline.stages[static_cast<size_t>(stage)]),
      timed_(*timed),
      clock_(stage_times(group_, pipeline.chunks), kPaperStageStreams * stage, timed) {
  const auto microbatches = static_cast<size_t>(pipeline.chunks) * group_.microbatches;
  received_[0].assign(microbatches, stage == 0);
  received_[1].assign(microbatches, last());
  const int32_t all = group_.microbatches - 1;
  add(chunk_order(pipeline, stage), last() ? lags : Lags{all, all, all});
}

void ZebraStage::add(const ActionList& order, const Lags& lags) {
  const ActionList of_chunk = group_actions(group_, lags);
  for (size_t w = 0; w < order.size(); ++w) {
    const int64_t chunk = order[w].microbatches.first;
    const bool forward = order[w].phase == Phase::kForward;
    const bool turns = last() && forward && w + 1 < order.size() &&
                       order[w + 1].phase == Phase::kBackward &&
                       order[w + 1].microbatches.first == chunk;
    for (Action action : of_chunk) {
      const bool head = action.kind == ActionKind::kHead;
      if (head && !last()) continue;
      const bool of_backward = head || action.phase == Phase::kBackward;
      if (!turns && of_backward == forward) continue;
      action.microbatches.first += chunk * group_.microbatches;
      actions_.push_back(action);
    }
    if (turns) ++w;
  }
}

bool ZebraStage::is_bottom(const Action& action) const {
  return action.kind == ActionKind::kAttention && action.layer == 0;
}

bool ZebraStage::is_top(const Action& action) const {
  const bool experts = group_.last_layer_experts;
  return action.kind == (experts ? ActionKind::kExperts : ActionKind::kAttention) &&
         action.layer == group_.layers - 1;
}

void ZebraStage::send(const Action& action, ZebraStage* to) {
  if (to == nullptr) return;
  const int64_t microbatch = action.microbatches.first;
  const bool forward = action.phase == Phase::kForward;
  const int32_t stream = kPaperStageStreams * stage_ + kPaperStreams + (forward ? 0 : 1);
  to->clock_.wait_for(microbatch, static_cast<int32_t>(timed_.queue.size()));
  to->received_[forward ? 0 : 1][static_cast<size_t>(microbatch)] = 1;
  timed_.queue.push_back({stream, boundary_s_, clock_.after(microbatch)});
  timed_.tasks.push_back({TaskKind::kSend, action.phase, -1, static_cast<int32_t>(microbatch)});
}

bool ZebraStage::advance(ZebraStage* next, ZebraStage* before) {
  const size_t begin = next_;
  for (; next_ < actions_.size(); ++next_) {
    const Action& action = actions_[next_];
    const bool forward = action.phase == Phase::kForward;
    const bool begins = forward ? is_bottom(action) : is_top(action);
    const auto microbatch = static_cast<size_t>(action.microbatches.first);
    if (begins && !received_[forward ? 0 : 1][microbatch]) break;
    clock_.add(action);
    const bool ends = forward ? is_top(action) : is_bottom(action);
    if (ends) send(action, forward ? next : before);
  }
  return next_ > begin;
}

}  // namespace

Status check_zebra_pipeline(const ZebraPipeline& p) {
  RETURN_IF_ERROR(check_integer("the number of stages", static_cast<int64_t>(p.stages.size())));
  RETURN_IF_ERROR(check_integer("the number of chunks", p.chunks));
  if (!std::isfinite(p.boundary_s) || p.boundary_s < 0) {
    return invalid_pipeline(
        strf("a boundary takes %g s, which no network does; measure it again", p.boundary_s));
  }
  for (const ZebraGroup& stage : p.stages) {
    RETURN_IF_ERROR(check_zebra(stage));
    if (!stage.backward)
      return invalid_pipeline("a stage has no backward; plan the forward by itself");
    if (stage.microbatches == p.stages.front().microbatches) continue;
    return invalid_pipeline(strf("stages of %d and of %d microbatches; give all as many",
                                 p.stages.front().microbatches, stage.microbatches));
  }
  return Status();
}

Result<TimedActions> plan_zebra_pipeline(const ZebraPipeline& pipeline, const Lags& lags) {
  RETURN_IF_ERROR(check_zebra_pipeline(pipeline));
  RETURN_IF_ERROR(check_lags(pipeline.stages.back(), lags));
  TimedActions timed;
  std::deque<ZebraStage> stages;  // they stay where they are
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    stages.emplace_back(pipeline, static_cast<int32_t>(s), lags, &timed);
  }
  for (bool any = true; any;) {
    any = false;
    for (size_t s = 0; s < stages.size(); ++s) {
      ZebraStage* next = s + 1 < stages.size() ? &stages[s + 1] : nullptr;
      any = stages[s].advance(next, s > 0 ? &stages[s - 1] : nullptr) || any;
    }
  }
  for (const ZebraStage& stage : stages) CHECK(stage.done(), "stages wait for each other");
  return timed;
}

Result<ZebraPipelineStep> best_zebra_pipeline(const ZebraPipeline& pipeline) {
  RETURN_IF_ERROR(check_zebra_pipeline(pipeline));
  const ZebraGroup& last = pipeline.stages.back();
  std::optional<ZebraPipelineStep> best;
  for (const Lags& lags : lag_choices(last.microbatches, last.last_layer_experts)) {
    Result<TimedActions> plan = plan_zebra_pipeline(pipeline, lags);
    if (!plan.ok()) continue;  // these lags wait for each other
    const int streams = kPaperStageStreams * static_cast<int>(pipeline.stages.size());
    StreamTimes times = time_streams(plan->queue, streams);
    if (best && times.makespan_s >= best->times.makespan_s) continue;
    best = ZebraPipelineStep{lags, plan.take(), std::move(times)};
  }
  CHECK(best, "all microbatches first and then all backwards waits for nothing");
  return std::move(*best);
}

}  // namespace pagoda
