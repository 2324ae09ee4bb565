#include <algorithm>
#include <utility>

#include "plan/two_kinds.h"
#include "plan/two_kinds_search.h"

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

Result<WayTimeline> zebra_timeline(const TwoKinds& kinds, const TwoKindsMemory& memory,
                                   const UnequalStep& step, const SearchedWay& way,
                                   int32_t experts) {
  ASSIGN_OR_RETURN(ZebraGroup group, zebra_group(step, way.microbatches, experts));
  group.offloaded = way.offloaded;
  ASSIGN_OR_RETURN(const ZebraStep best, best_zebra(group));
  const TwoKindsMemory::ZebraRoom room = memory.zebra_room(way);
  const double tasks = static_cast<double>(step.layers) * way.microbatches;
  KeptInputs attention("attention device", kinds.newer->auto_device_bytes(),
                       room.attention_bytes, memory.attention_inputs() / tasks);
  KeptInputs held("expert device", kinds.older->auto_device_bytes(), room.expert_bytes,
                     memory.expert_inputs() / tasks);
  WayTimeline timeline;
  timeline.end_s = best.times.makespan_s;
  for (const char* name : {"attention devices", "expert devices", "to experts", "to attention",
                           "attention's sums", "experts' sums"}) {
    timeline.lanes.push_back({name, "layer", {}});
  }
  for (size_t t = 0; t < best.plan.tasks.size(); ++t) {
    const ZebraTask& task = best.plan.tasks[t];
    const double start_s = best.times.start_s[t], end_s = best.times.end_s[t];
    timeline.lanes[static_cast<size_t>(best.plan.queue[t].stream)].pieces.push_back(
        {work_of(task.kind), start_s, end_s, task.layer});
    if (task.kind == ZebraKind::kAttention) attention.add(start_s, true);
    if (task.kind == ZebraKind::kAttentionBackward) attention.add(end_s, false);
    if (task.kind == ZebraKind::kExpert) held.add(start_s, true);
    if (task.kind == ZebraKind::kExpertBackward) held.add(end_s, false);
  }
  timeline.memory = {attention.room(), held.room()};
  drop_empty_lanes(timeline);
  return timeline;
}

Result<WayTimeline> best_timeline(const UnequalStep& step, const TwoKindsMemory& memory,
                                  const SearchedWay& way) {
  if (way.kind == WayKind::kExpertParallel) {
    ASSIGN_OR_RETURN(const PartedStep best, best_expert_parallel(step, kMostParts));
    ASSIGN_OR_RETURN(const TimedStreams run, expert_parallel_streams(step, best.parts));
    return timeline_of(run);
  }
  if (way.kind == WayKind::kDisaggregated) {
    ASSIGN_OR_RETURN(const PartedStep best, best_disaggregated(step, kMostParts));
    ASSIGN_OR_RETURN(const TimedStreams run, disaggregated_streams(step, best.parts));
    return timeline_of(run);
  }
  const UnequalStep bounded = memory.bounded(step, way.state, way.microbatches);
  ASSIGN_OR_RETURN(const PipelineStep best, pipeline_step(bounded, way.microbatches));
  return timeline_of(best.streams);
}

}  // namespace

Result<WayTimeline> two_kinds_timeline(const ModelShape& model, const ClusterSheet& cluster,
                                       const StepDemand& demand, const SearchedWay& way) {
  ASSIGN_OR_RETURN(const TwoKinds kinds, two_kinds(cluster));
  ASSIGN_OR_RETURN(const ModelCost cost, two_kinds_cost(model));
  const TwoKindsMemory memory(cost, kinds, demand);
  const UnequalStep step = unequal_step(model, cluster, kinds, demand);
  if (way.kind == WayKind::kZebra) {
    return zebra_timeline(kinds, memory, step, way, static_cast<int32_t>(model.num_experts));
  }
  // Of what zebra is compared with, memory is what is set aside for the whole step.
  ASSIGN_OR_RETURN(WayTimeline timeline, best_timeline(step, memory, way));
  const int64_t budget =
      std::max(kinds.newer->auto_device_bytes(), kinds.older->auto_device_bytes());
  timeline.memory = {{"fullest device", budget, {{0, way.device_bytes}}}};
  return timeline;
}

}  // namespace pagoda
