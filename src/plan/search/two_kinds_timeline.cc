#include <algorithm>
#include <utility>

#include "plan/search/shared_step.h"
#include "plan/search/two_kinds.h"
#include "plan/search/two_kinds_search.h"
#include "plan/search/zebra_search.h"

namespace pagoda {
namespace {

WayWork work_of(ZebraKind kind) {
  switch (kind) {
    case ZebraKind::kAttention:
    case ZebraKind::kAttentionBackward: return WayWork::kAttention;
    case ZebraKind::kExpert:
    case ZebraKind::kExpertBackward:
    case ZebraKind::kOffloaded:
    case ZebraKind::kOffloadedBackward: return WayWork::kExperts;
    case ZebraKind::kHead: return WayWork::kHead;
    case ZebraKind::kDispatch:
    case ZebraKind::kCombine:
    case ZebraKind::kDispatchAgain:
    case ZebraKind::kDispatchBackward:
    case ZebraKind::kCombineBackward: return WayWork::kTransfer;
    case ZebraKind::kAttentionSum:
    case ZebraKind::kExpertSum: return WayWork::kGradients;
  }
  return WayWork::kComputing;
}

WayWork work_of(StreamUse use) {
  switch (use) {
    case StreamUse::kComputing: return WayWork::kComputing;
    case StreamUse::kTransfer: return WayWork::kTransfer;
    case StreamUse::kSums: return WayWork::kGradients;
  }
  return WayWork::kComputing;
}

// Streams without a task have no lane.
void drop_empty_lanes(WayTimeline& timeline) {
  std::erase_if(timeline.lanes, [](const WayLane& lane) { return lane.pieces.empty(); });
}

WayTimeline timeline_of(const TimedStreams& run) {
  WayTimeline timeline;
  timeline.end_s = run.times.makespan_s;
  for (const TimedStreams::Stream& stream : run.streams) {
    timeline.lanes.push_back({stream.name, "", {}});
  }
  for (size_t t = 0; t < run.tasks.size(); ++t) {
    const auto stream = static_cast<size_t>(run.tasks[t].stream);
    timeline.lanes[stream].pieces.push_back(
        {work_of(run.streams[stream].use), run.times.start_s[t], run.times.end_s[t]});
  }
  drop_empty_lanes(timeline);
  return timeline;
}

// Each layer's inputs of a microbatch are held from a forward until the backward.
class KeptInputs {
 public:
  KeptInputs(std::string name, int64_t budget_bytes, double always_bytes, double of_task_bytes)
      : room_{std::move(name), budget_bytes, {{0, static_cast<int64_t>(always_bytes)}}},
        always_bytes_(always_bytes),
        of_task_bytes_(of_task_bytes) {}

  void add(double at_s, bool taken) { changes_.emplace_back(at_s, taken ? 1 : -1); }
  WayMemory room() {
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    int kept = 0;
    for (const auto& [at_s, sign] : changes_) {
      kept += sign;
      const double bytes = always_bytes_ + kept * of_task_bytes_;
      room_.held.emplace_back(at_s, static_cast<int64_t>(bytes));
    }
    return std::move(room_);
  }

 private:
  WayMemory room_;
  double always_bytes_, of_task_bytes_;
  std::vector<std::pair<double, int>> changes_;
};

// Of one copy: lanes of what each stage has, and a device of each kind.
class ZebraTimeline {
 public:
  ZebraTimeline(const ZebraLayout& layout, const TwoKinds& kinds,
                const std::vector<ZebraRoom>& rooms, const ZebraPipeline& pipeline);

  WayTimeline take(const ZebraPipelineStep& step);

 private:
  std::string name(size_t stage, const char* of) const {
    return layout_.stages > 1 ? strf("stage %zu %s", stage, of) : of;
  }
  void add(const ZebraStageTask& task, const StreamTask& queued, double start_s, double end_s);

  const ZebraLayout& layout_;
  WayTimeline timeline_;
  std::vector<KeptInputs> attention_, expert_;  // [stage]
};

ZebraTimeline::ZebraTimeline(const ZebraLayout& layout, const TwoKinds& kinds,
                             const std::vector<ZebraRoom>& rooms, const ZebraPipeline& pipeline)
    : layout_(layout) {
  for (size_t s = 0; s < rooms.size(); ++s) {
    for (const char* of : {"attention devices", "expert devices", "to experts", "to attention",
                           "attention's sums", "experts' sums"}) {
      timeline_.lanes.push_back({name(s, of), "layer", {}});
    }
    for (const char* of : {"onward", "back"}) timeline_.lanes.push_back({name(s, of), "", {}});
    const ZebraRoom& room = rooms[s];
    const double tasks = static_cast<double>(pipeline.stages[s].layers) * layout.microbatches;
    attention_.emplace_back(name(s, "attention device"), kinds.newer->auto_device_bytes(),
                            room.attention_fixed, room.attention_inputs / tasks);
    expert_.emplace_back(name(s, "expert device"), kinds.older->auto_device_bytes(),
                         room.expert_fixed, room.expert_inputs / tasks);
  }
}

void ZebraTimeline::add(const ZebraStageTask& at, const StreamTask& queued, double start_s,
                        double end_s) {
  const auto stage = static_cast<size_t>(at.stage);
  std::vector<WayPiece>& pieces =
      timeline_.lanes[static_cast<size_t>(queued.stream)].pieces;
  if (!at.task) {
    pieces.push_back({WayWork::kTransfer, start_s, end_s});
    return;
  }
  const ZebraTask& task = *at.task;
  pieces.push_back({work_of(task.kind), start_s, end_s, task.layer});
  if (task.kind == ZebraKind::kAttention) attention_[stage].add(start_s, true);
  if (task.kind == ZebraKind::kAttentionBackward) attention_[stage].add(end_s, false);
  if (task.kind == ZebraKind::kExpert) expert_[stage].add(start_s, true);
  if (task.kind == ZebraKind::kExpertBackward) expert_[stage].add(end_s, false);
}

WayTimeline ZebraTimeline::take(const ZebraPipelineStep& step) {
  for (size_t t = 0; t < step.plan.tasks.size(); ++t) {
    add(step.plan.tasks[t], step.plan.queue[t], step.times.start_s[t], step.times.end_s[t]);
  }
  timeline_.end_s = step.times.makespan_s;
  for (size_t s = 0; s < attention_.size(); ++s) {
    timeline_.memory.push_back(attention_[s].room());
    timeline_.memory.push_back(expert_[s].room());
  }
  drop_empty_lanes(timeline_);
  return std::move(timeline_);
}

// A way, and what of its time is on the hosts after the step.
struct Drawn {
  WayTimeline timeline;
  double newer_parameters = 0, older_parameters = 0;
};

void add_memory(const TwoKinds& kinds, const TwoKindsBytes& bytes, Drawn& drawn) {
  // Of what zebra is compared with, memory is what is set aside for the whole step.
  drawn.timeline.memory = {{"newer device", kinds.newer->auto_device_bytes(),
                            {{0, static_cast<int64_t>(bytes.newer)}}},
                           {"older device", kinds.older->auto_device_bytes(),
                            {{0, static_cast<int64_t>(bytes.older)}}}};
  drawn.newer_parameters = bytes.newer_parameters;
  drawn.older_parameters = bytes.older_parameters;
}

class WayDrawer {
 public:
  WayDrawer(const ModelShape& model, const ModelCost& cost, const ClusterSheet& cluster,
            const TwoKinds& kinds, const StepDemand& demand)
      : model_(model), cost_(cost), cluster_(cluster), kinds_(kinds), demand_(demand) {}

  Result<Drawn> zebra(const SearchedWay& way) const {
    const ZebraLayout layout = layout_of(way);
    ASSIGN_OR_RETURN(ZebraPipeline pipeline,
                     zebra_pipeline(model_, cluster_, kinds_, demand_, layout));
    pipeline.set_offloaded(way.offloaded);
    ASSIGN_OR_RETURN(const ZebraPipelineStep step, time_zebra_pipeline(pipeline, way.lags));
    const ZebraMemory memory(cost_, kinds_, demand_);
    const auto most = memory.fullest(layout, way.state, way.offloaded);
    const auto rooms = memory.rooms(layout, way.state, way.offloaded);
    return Drawn{ZebraTimeline(layout, kinds_, rooms, pipeline).take(step),
                 most.attention_parameters, most.expert_parameters};
  }
  Result<Drawn> copied(const SearchedWay& way) const {
    const CopiedStep copy = copied_step(model_, cluster_, kinds_, demand_,
                                        static_cast<int32_t>(way.mesh.data));
    const TwoKindsMemory memory(cost_, copy.kinds, copy.demand);
    const bool together = way.kind == WayKind::kExpertParallel;
    ASSIGN_OR_RETURN(const TimedStreams run, together
                                                 ? expert_parallel_streams(copy.step, way.parts)
                                                 : disaggregated_streams(copy.step, way.parts));
    Drawn drawn{timeline_of(run)};
    add_memory(kinds_,
               together ? memory.expert_parallel(way.state) : memory.disaggregated(way.state),
               drawn);
    return drawn;
  }
  Result<Drawn> pipelines(const SearchedWay& way) const {
    const TwoKindsMemory memory(cost_, kinds_, demand_);
    const UnequalStep step = memory.bounded(unequal_step(model_, cluster_, kinds_, demand_),
                                            way.state, way.microbatches);
    ASSIGN_OR_RETURN(const PipelineStep run, pipeline_step(step, way.microbatches));
    Drawn drawn{timeline_of(run.streams)};
    add_memory(kinds_, memory.pipelined(way.state, run, way.microbatches), drawn);
    return drawn;
  }
  Result<Drawn> shared(const SearchedWay& way) const {
    ASSIGN_OR_RETURN(const SharedStep step,
                     shared_step(model_, cluster_, kinds_, demand_, way.sharing));
    Drawn drawn{timeline_of(step.streams)};
    add_memory(kinds_, shared_bytes(model_, cost_, demand_, step, way.state), drawn);
    return drawn;
  }
  Result<Drawn> draw(const SearchedWay& way) const {
    if (way.kind == WayKind::kShared) return shared(way);
    if (way.kind == WayKind::kZebra) return zebra(way);
    return way.kind == WayKind::kPipeline ? pipelines(way) : copied(way);
  }

 private:
  const ModelShape& model_;
  const ModelCost& cost_;
  const ClusterSheet& cluster_;
  const TwoKinds& kinds_;
  const StepDemand& demand_;
};

}  // namespace

Result<WayTimeline> two_kinds_timeline(const ModelShape& model, const ClusterSheet& cluster,
                                       const StepDemand& demand, const SearchedWay& way) {
  ASSIGN_OR_RETURN(const TwoKinds kinds, two_kinds(cluster));
  ASSIGN_OR_RETURN(const ModelCost cost, two_kinds_cost(model));
  ASSIGN_OR_RETURN(Drawn drawn, WayDrawer(model, cost, cluster, kinds, demand).draw(way));
  ASSIGN_OR_RETURN(const HostUpdates updates,
                   two_kinds_updates(kinds, way.state, drawn.newer_parameters,
                                     drawn.older_parameters));
  if (updates.seconds > 0) {
    const double from_s = drawn.timeline.end_s;
    drawn.timeline.end_s += updates.seconds;
    drawn.timeline.lanes.push_back(
        {"hosts", "", {{WayWork::kUpdates, from_s, drawn.timeline.end_s}}});
  }
  return std::move(drawn.timeline);
}

}  // namespace pagoda
