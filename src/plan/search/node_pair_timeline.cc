#include <algorithm>
#include <utility>

#include "plan/search/node_pair.h"
#include "plan/search/node_pair_search.h"
#include "plan/search/shared_step.h"
#include "plan/search/zebra_search.h"

namespace pagoda {
namespace {

StrategyWork work_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kAttention:
    case TaskKind::kAttentionBackward:
      return StrategyWork::kAttention;
    case TaskKind::kExpert:
    case TaskKind::kExpertBackward:
      return StrategyWork::kExperts;
    case TaskKind::kHead:
      return StrategyWork::kHead;
    case TaskKind::kAddSums:
      return StrategyWork::kGradients;
    default:
      return StrategyWork::kTransfer;
  }
}

StrategyWork work_of(StreamUse use) {
  switch (use) {
    case StreamUse::kComputing:
      return StrategyWork::kComputing;
    case StreamUse::kTransfer:
      return StrategyWork::kTransfer;
    case StreamUse::kSums:
      return StrategyWork::kGradients;
  }
  return StrategyWork::kComputing;
}

// Streams without a task have no lane.
void drop_empty_lanes(StrategyTimeline& timeline) {
  std::erase_if(timeline.lanes, [](const StrategyLane& lane) { return lane.pieces.empty(); });
}

StrategyTimeline timeline_of(const TimedStreams& run) {
  StrategyTimeline timeline;
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
  StrategyMemory room() {
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
  StrategyMemory room_;
  double always_bytes_, of_task_bytes_;
  std::vector<std::pair<double, int>> changes_;
};

// The timeline of one copy: each stage's lanes, and a device of each kind.
class ZebraTimeline {
 public:
  ZebraTimeline(const ZebraLayout& layout, const NodePair& kinds,
                const std::vector<ZebraRoom>& rooms, const ZebraPipeline& pipeline);

  StrategyTimeline take(const ZebraPipelineStep& step);

 private:
  std::string name(size_t stage, const char* of) const {
    return layout_.stages > 1 ? strf("stage %zu %s", stage, of) : of;
  }
  void add(const TimedTask& task, int32_t stream, double start_s, double end_s);

  const ZebraLayout& layout_;
  StrategyTimeline timeline_;
  std::vector<KeptInputs> attention_, expert_;  // [stage]
};

ZebraTimeline::ZebraTimeline(const ZebraLayout& layout, const NodePair& kinds,
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
    attention_.emplace_back(name(s, "attention device"), kinds.faster->auto_device_bytes(),
                            room.attention_fixed, room.attention_inputs / tasks);
    expert_.emplace_back(name(s, "expert device"), kinds.slower->auto_device_bytes(),
                         room.expert_fixed, room.expert_inputs / tasks);
  }
}

void ZebraTimeline::add(const TimedTask& task, int32_t stream, double start_s, double end_s) {
  const auto stage = static_cast<size_t>(stream / kPipelineStreams);
  if (task.kind == TaskKind::kRouteReplay) return;  // it takes no time
  timeline_.lanes[static_cast<size_t>(stream)].pieces.push_back(
      {work_of(task.kind), start_s, end_s, task.layer});
  const bool slower = stream % kPipelineStreams == static_cast<int32_t>(StepStream::kSlower);
  if (task.kind == TaskKind::kAttention) attention_[stage].add(start_s, true);
  if (task.kind == TaskKind::kAttentionBackward) attention_[stage].add(end_s, false);
  if (task.kind == TaskKind::kExpert && slower) expert_[stage].add(start_s, true);
  if (task.kind == TaskKind::kExpertBackward && slower) expert_[stage].add(end_s, false);
}

StrategyTimeline ZebraTimeline::take(const ZebraPipelineStep& step) {
  for (size_t t = 0; t < step.plan.tasks.size(); ++t) {
    add(step.plan.tasks[t], step.plan.queue[t].stream, step.times.start_s[t], step.times.end_s[t]);
  }
  timeline_.end_s = step.times.makespan_s;
  for (size_t s = 0; s < attention_.size(); ++s) {
    timeline_.memory.push_back(attention_[s].room());
    timeline_.memory.push_back(expert_[s].room());
  }
  drop_empty_lanes(timeline_);
  return std::move(timeline_);
}

// A strategy, and what is updated after its step.
struct Drawn {
  StrategyTimeline timeline;
  DeviceParameters faster = {}, slower = {};
};

void add_memory(const NodePair& kinds, const NodePairBytes& bytes, Drawn& drawn) {
  // The memory of the strategies that zebra is compared with is set aside for the whole step.
  drawn.timeline.memory = {{"faster device",
                            kinds.faster->auto_device_bytes(),
                            {{0, static_cast<int64_t>(bytes.faster)}}},
                           {"slower device",
                            kinds.slower->auto_device_bytes(),
                            {{0, static_cast<int64_t>(bytes.slower)}}}};
  drawn.faster = bytes.faster_parameters;
  drawn.slower = bytes.slower_parameters;
}

class StrategyDrawer {
 public:
  StrategyDrawer(const ModelShape& model, const ModelCost& cost, const ClusterSheet& cluster,
                 const NodePair& kinds, const ClusterDemand& demand)
      : model_(model), cost_(cost), cluster_(cluster), kinds_(kinds), demand_(demand) {}

  Result<Drawn> zebra(const Strategy& strategy) const {
    const ZebraLayout layout = layout_of(strategy);
    ASSIGN_OR_RETURN(ZebraPipeline pipeline,
                     zebra_pipeline(model_, cluster_, kinds_, demand_, layout));
    pipeline.set_offloaded(strategy.offloaded);
    ASSIGN_OR_RETURN(const ZebraPipelineStep step, time_zebra_pipeline(pipeline, strategy.lags));
    const ZebraMemory memory(cost_, kinds_, demand_);
    const auto most = memory.fullest(layout, strategy.state, strategy.offloaded);
    const auto rooms = memory.rooms(layout, strategy.state, strategy.offloaded);
    return Drawn{ZebraTimeline(layout, kinds_, rooms, pipeline).take(step), most.attention,
                 most.experts};
  }
  Result<Drawn> copied(const Strategy& strategy) const {
    const CopiedStep copy =
        copied_step(model_, cluster_, kinds_, demand_, static_cast<int32_t>(strategy.mesh.data));
    const NodePairMemory memory(cost_, copy.kinds, copy.demand);
    const bool together = strategy.kind == StrategyKind::kExpertParallel;
    ASSIGN_OR_RETURN(const TimedStreams run,
                     together ? expert_parallel_streams(copy.step, strategy.parts)
                              : disaggregated_streams(copy.step, strategy.parts));
    Drawn drawn{timeline_of(run)};
    add_memory(
        kinds_,
        together ? memory.expert_parallel(strategy.state) : memory.disaggregated(strategy.state),
        drawn);
    return drawn;
  }
  Result<Drawn> pipelines(const Strategy& strategy) const {
    const NodePairMemory memory(cost_, kinds_, demand_);
    const HeterogeneousStep step =
        memory.bounded(heterogeneous_step(model_, cluster_, kinds_, demand_), strategy.state,
                       strategy.microbatches);
    ASSIGN_OR_RETURN(const PipelineStep run, pipeline_step(step, strategy.microbatches));
    Drawn drawn{timeline_of(run.streams)};
    add_memory(kinds_, memory.pipelined(strategy.state, run, strategy.microbatches), drawn);
    return drawn;
  }
  Result<Drawn> shared(const Strategy& strategy) const {
    ASSIGN_OR_RETURN(const SharedStep step,
                     shared_step(model_, cluster_, kinds_, demand_, strategy.sharing));
    Drawn drawn{timeline_of(step.streams)};
    add_memory(kinds_, shared_bytes(model_, cost_, demand_, step, strategy.state), drawn);
    return drawn;
  }
  Result<Drawn> draw(const Strategy& strategy) const {
    if (strategy.kind == StrategyKind::kShared) return shared(strategy);
    if (strategy.kind == StrategyKind::kZebra) return zebra(strategy);
    return strategy.kind == StrategyKind::kPipeline ? pipelines(strategy) : copied(strategy);
  }

 private:
  const ModelShape& model_;
  const ModelCost& cost_;
  const ClusterSheet& cluster_;
  const NodePair& kinds_;
  const ClusterDemand& demand_;
};

}  // namespace

Result<StrategyTimeline> node_pair_timeline(const ModelShape& model, const ClusterSheet& cluster,
                                            const ClusterDemand& demand, const Strategy& strategy) {
  ASSIGN_OR_RETURN(const NodePair kinds, node_pair(cluster));
  ASSIGN_OR_RETURN(const ModelCost cost, node_pair_cost(model));
  ASSIGN_OR_RETURN(Drawn drawn, StrategyDrawer(model, cost, cluster, kinds, demand).draw(strategy));
  ASSIGN_OR_RETURN(const StateUpdates updates,
                   node_pair_updates(kinds, strategy.state, drawn.faster, drawn.slower));
  const double from_s = drawn.timeline.end_s;
  drawn.timeline.end_s += updates.seconds;
  drawn.timeline.lanes.push_back({strategy.state.on_host ? "hosts" : "updates",
                                  "",
                                  {{StrategyWork::kUpdates, from_s, drawn.timeline.end_s}}});
  return std::move(drawn.timeline);
}

}  // namespace pagoda
