#include "plan/zebra/zebra_pipeline.h"

#include <cmath>
#include <deque>
#include <string>
#include <utility>

#include "plan/refusals.h"
#include "plan/zebra/zebra_order.h"
#include "plan/zebra/zebra_tasks.h"

namespace pagoda {
namespace {

constexpr Refusal invalid_pipeline("zebra pipeline");

bool is_forward(ZebraKind kind) {
  return kind == ZebraKind::kAttention || kind == ZebraKind::kDispatch ||
         kind == ZebraKind::kExpert || kind == ZebraKind::kOffloaded ||
         kind == ZebraKind::kCombine;
}

// The tasks of one stage for all chunks: those of its two kinds of devices, and of the links to
// other stages.
class ZebraStage {
 public:
  ZebraStage(const ZebraPipeline& pipeline, int32_t stage, const Lags& lags,
             ZebraPipelinePlan* plan);
  ZebraStage(const ZebraStage&) = delete;  // its tasks refer to its groups

  // Appends the tasks that are ready, in order; returns whether there was any.
  bool advance(ZebraStage* next, ZebraStage* before);
  bool done() const;

 private:
  struct Issued {
    int32_t chunk;
    ZebraTask task;
  };
  struct List {
    std::vector<Issued> tasks;
    size_t next = 0;
  };
  void add(const std::vector<PipelineWork>& order, const Lags& lags);
  void add_tasks(const std::vector<ZebraTask>& from, int32_t chunk, bool forward, bool backward,
                 List& list) const;
  bool issue(List& list);
  bool send(int64_t& next, Phase phase, ZebraStage* other);
  bool last() const { return stage_ + 1 == stages_; }
  int64_t microbatches() const { return int64_t{chunks_} * group_.microbatches; }

  int32_t stage_, stages_, chunks_;
  double boundary_s_;
  ZebraGroup group_, last_chunk_;  // the second with sums of gradients
  ZebraPipelinePlan& plan_;
  std::vector<ZebraTasks> tasks_;  // [chunk]
  List attention_, expert_;
  int64_t to_next_ = 0, to_before_ = 0;  // microbatches that have left the stage, over all chunks
};

ZebraGroup without_sums(ZebraGroup group) {
  group.times.attention_reduce_s = group.times.expert_reduce_s = 0;
  return group;
}

ZebraStage::ZebraStage(const ZebraPipeline& pipeline, int32_t stage, const Lags& lags,
                       ZebraPipelinePlan* plan)
    : stage_(stage),
      stages_(static_cast<int32_t>(pipeline.stages.size())),
      chunks_(pipeline.chunks),
      boundary_s_(pipeline.boundary_s),
      group_(without_sums(pipeline.stages[static_cast<size_t>(stage)])),
      last_chunk_(pipeline.stages[static_cast<size_t>(stage)]),
      plan_(*plan) {
  const ZebraTasks::Ends ends = {stage > 0, !last()};
  for (int32_t c = 0; c < chunks_; ++c) {
    tasks_.emplace_back(&(c + 1 == chunks_ ? last_chunk_ : group_), ends,
                        kPipelineStreams * stage, &plan->queue);
  }
  const int32_t all = group_.microbatches - 1;
  add(stage_order(pipeline.schedule, stages_, stage, chunks_).take(),
      last() ? lags : Lags{all, all, all});
}

void ZebraStage::add(const std::vector<PipelineWork>& order, const Lags& lags) {
  for (size_t w = 0; w < order.size(); ++w) {
    const auto chunk = static_cast<int32_t>(order[w].microbatch);
    const bool forward = order[w].phase == Phase::kForward;
    const bool turns = last() && forward && w + 1 < order.size() &&
                       order[w + 1].phase == Phase::kBackward &&
                       order[w + 1].microbatch == order[w].microbatch;
    const ZebraOrder issued = order_zebra(chunk + 1 == chunks_ ? last_chunk_ : group_, lags);
    add_tasks(issued.attention, chunk, forward, !forward || turns, attention_);
    add_tasks(issued.expert, chunk, forward, !forward || turns, expert_);
    if (turns) ++w;
  }
}

void ZebraStage::add_tasks(const std::vector<ZebraTask>& from, int32_t chunk, bool forward,
                           bool backward, List& list) const {
  for (const ZebraTask& task : from) {
    if (task.kind == ZebraKind::kHead && !last()) continue;
    if (is_forward(task.kind) ? forward : backward) list.tasks.push_back({chunk, task});
  }
}

bool ZebraStage::issue(List& list) {
  const size_t before = list.next;
  while (list.next < list.tasks.size()) {
    const Issued& issued = list.tasks[list.next];
    if (!tasks_[static_cast<size_t>(issued.chunk)].try_add(issued.task)) break;
    const Phase phase = is_forward(issued.task.kind) ? Phase::kForward : Phase::kBackward;
    plan_.tasks.push_back({stage_, issued.chunk, issued.task.microbatch, phase, issued.task});
    ++list.next;
  }
  return list.next > before;
}

// Microbatches leave a stage in their order, forward and backward.
bool ZebraStage::send(int64_t& next, Phase phase, ZebraStage* other) {
  const int64_t before = next;
  for (; other && next < microbatches(); ++next) {
    const auto chunk = static_cast<size_t>(next / group_.microbatches);
    const auto microbatch = static_cast<int32_t>(next % group_.microbatches);
    const bool forward = phase == Phase::kForward;
    StreamTask transfer;
    transfer.stream = kPipelineStreams * stage_ + kZebraStreams + (forward ? 0 : 1);
    transfer.seconds = boundary_s_;
    const bool ready = forward ? tasks_[chunk].output(microbatch, transfer.after)
                               : tasks_[chunk].input_gradient(microbatch, transfer.after);
    if (!ready) break;
    const auto task = static_cast<int32_t>(plan_.queue.size());
    plan_.queue.push_back(transfer);
    plan_.tasks.push_back({stage_, static_cast<int32_t>(chunk), microbatch, phase, std::nullopt});
    if (forward) {
      other->tasks_[chunk].receive_input(microbatch, task);
    } else {
      other->tasks_[chunk].receive_gradient(microbatch, task);
    }
  }
  return next > before;
}

bool ZebraStage::advance(ZebraStage* next, ZebraStage* before) {
  bool any = issue(attention_);
  any = issue(expert_) || any;
  any = send(to_next_, Phase::kForward, next) || any;
  return send(to_before_, Phase::kBackward, before) || any;
}

bool ZebraStage::done() const {
  return attention_.next == attention_.tasks.size() && expert_.next == expert_.tasks.size();
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

void ZebraPipeline::set_offloaded(const std::vector<int32_t>& offloaded) {
  auto from = offloaded.begin();
  for (ZebraGroup& stage : stages) {
    CHECK(offloaded.end() - from >= stage.layers, "a number for each layer");
    stage.offloaded.assign(from, from + stage.layers);
    from += stage.layers;
  }
}

Result<ZebraPipelinePlan> plan_zebra_pipeline(const ZebraPipeline& pipeline, const Lags& lags) {
  RETURN_IF_ERROR(check_zebra_pipeline(pipeline));
  RETURN_IF_ERROR(check_lags(lags));
  ZebraPipelinePlan plan;
  std::deque<ZebraStage> stages;  // they stay where they are
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    stages.emplace_back(pipeline, static_cast<int32_t>(s), lags, &plan);
  }
  for (bool any = true; any;) {
    any = false;
    for (size_t s = 0; s < stages.size(); ++s) {
      ZebraStage* next = s + 1 < stages.size() ? &stages[s + 1] : nullptr;
      any = stages[s].advance(next, s > 0 ? &stages[s - 1] : nullptr) || any;
    }
  }
  for (const ZebraStage& stage : stages) {
    if (!stage.done()) return lags_that_wait(lags);
  }
  return plan;
}

Result<ZebraPipelineStep> time_zebra_pipeline(const ZebraPipeline& pipeline, const Lags& lags) {
  ASSIGN_OR_RETURN(ZebraPipelinePlan plan, plan_zebra_pipeline(pipeline, lags));
  const int streams = kPipelineStreams * static_cast<int>(pipeline.stages.size());
  StreamTimes times = time_streams(plan.queue, streams);
  return ZebraPipelineStep{lags, std::move(plan), std::move(times)};
}

Result<ZebraPipelineStep> best_zebra_pipeline(const ZebraPipeline& pipeline) {
  RETURN_IF_ERROR(check_zebra_pipeline(pipeline));
  std::optional<ZebraPipelineStep> best;
  for (const Lags& lags : lag_choices(pipeline.stages.back())) {
    Result<ZebraPipelineStep> step = time_zebra_pipeline(pipeline, lags);
    if (!step.ok()) continue;  // these lags wait for each other
    if (!best || step->times.makespan_s < best->times.makespan_s) best = step.take();
  }
  CHECK(best, "all microbatches first and then all backwards waits for nothing");
  return std::move(*best);
}

}  // namespace pagoda
