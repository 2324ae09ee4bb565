#include "plan/search/mesh_search.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/si_units.h"
#include "plan/machine/work_cost.h"
#include "plan/mesh/recomputed_layers.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

constexpr double kSooner = 1 - 1e-9;

// Weights of whole layers that pass through a device, and their gradients.
int64_t cache_bytes(const ModelCost& cost, ExpertSharing sharing) {
  if (sharing != ExpertSharing::kDataCentric) return 0;
  int64_t most = 0;
  for (const LayerCost& layer : cost.layers) {
    most = std::max(most, kValueBytes * layer.num_experts * layer.expert_parameters);
  }
  constexpr int64_t kCachedLayers = 2, kGradients = 1;
  return (kCachedLayers + kGradients) * most;
}

struct FittedStages {
  std::vector<MeshStage> stages;
  std::vector<uint8_t> recomputed;  // [layers]
  DeviceParameters most;            // of the device with most parameters
};

MeshStage fitted_stage(const StageMemory& memory, const RecomputedLayers& again, int64_t cache) {
  MeshStage stage;
  stage.parameter_bytes = memory.parameter_bytes + cache;
  stage.kept_bytes = memory.microbatch_bytes;
  for (const int64_t layer : again.layers) {
    const int64_t saved = memory.layer_bytes[static_cast<size_t>(layer)] - memory.input_bytes;
    stage.kept_bytes -= saved;
    stage.again_bytes = std::max(stage.again_bytes, saved);
  }
  stage.recomputed_layers = static_cast<int64_t>(again.layers.size());
  stage.peak_bytes = again.peak_bytes + cache;
  return stage;
}

// The parts of a device of a stage that are updated by themselves.
double stage_records(const ModelCost& cost, const Mesh& mesh, int64_t stage) {
  const auto [first, last] =
      stage_layers(static_cast<int64_t>(cost.layers.size()), mesh.pipeline, stage);
  int64_t records = (stage == 0) + (stage == mesh.pipeline - 1);
  for (int64_t l = first; l < last; ++l) {
    records += 1 + cost.layers[static_cast<size_t>(l)].num_experts / mesh.expert;
  }
  return static_cast<double>(records);
}

Result<FittedStages> fit_stages(const ModelCost& cost, const MachineSheet& node,
                                const Strategy& strategy) {
  MemoryOptions options;
  options.schedule = strategy.schedule;
  options.replicated_bytes = options.expert_bytes = strategy.state.device_bytes();
  const int64_t cache = cache_bytes(cost, strategy.sharing);
  const int64_t room = std::max<int64_t>(0, node.auto_device_bytes() - cache);
  const auto layers = static_cast<int64_t>(cost.layers.size());
  FittedStages fitted;
  fitted.recomputed.assign(cost.layers.size(), 0);
  for (int64_t stage = 0; stage < strategy.mesh.pipeline; ++stage) {
    ASSIGN_OR_RETURN(const StageMemory memory,
                     stage_memory(cost, strategy.mesh, strategy.batch, options, stage));
    ASSIGN_OR_RETURN(const RecomputedLayers again, fewest_recomputed(memory, room));
    const int64_t first = stage_layers(layers, strategy.mesh.pipeline, stage).first;
    for (const int64_t layer : again.layers) {
      fitted.recomputed[static_cast<size_t>(first + layer)] = 1;
    }
    fitted.stages.push_back(fitted_stage(memory, again, cache));
    const auto parameters =
        static_cast<double>(memory.parameters.replicated + memory.parameters.experts);
    if (parameters > fitted.most.parameters) {
      fitted.most = {parameters, stage_records(cost, strategy.mesh, stage)};
    }
  }
  return fitted;
}

// Fills in time, memory and recomputation of a strategy that has the rest.
void fill_in(const MeshStep& step, const MachineSheet& node, Strategy& strategy) {
  strategy.step_s = step.step_s();
  strategy.mfu = step.estimate.model_flops / (kTera * node.device.peak_tflops * strategy.step_s *
                                              static_cast<double>(strategy.mesh.devices()));
  for (const MeshStage& stage : step.stages) {
    strategy.recomputed_layers = std::max(strategy.recomputed_layers, stage.recomputed_layers);
    strategy.device_bytes = std::max(strategy.device_bytes, stage.peak_bytes);
  }
  strategy.host_bytes = static_cast<int64_t>(step.updates.state_bytes);
}

// Adds the pieces in which a stage computes and then sends.
void add_piece(const PipelinePiece& piece, const StageWork& work, StrategyLane& lane) {
  const bool forward = piece.work.phase == Phase::kForward;
  const double compute_s = forward ? work.forward_compute_s : work.backward_compute_s;
  const double sends_s = std::min(piece.start_s + compute_s, piece.end_s);
  lane.pieces.push_back({forward ? StrategyWork::kForward : StrategyWork::kBackward, piece.start_s,
                         sends_s, piece.work.microbatch});
  if (sends_s < piece.end_s) {
    lane.pieces.push_back({StrategyWork::kTransfer, sends_s, piece.end_s, piece.work.microbatch});
  }
}

// A microbatch's activations from the start of its forward to the end of its backward.
StrategyMemory stage_room(const std::string& name, const std::vector<PipelinePiece>& pieces,
                          const MeshStage& stage, int64_t budget_bytes) {
  StrategyMemory room{name, budget_bytes, {{0, stage.parameter_bytes}}};
  int64_t held = stage.parameter_bytes;
  for (const PipelinePiece& piece : pieces) {
    const bool forward = piece.work.phase == Phase::kForward;
    held += forward ? stage.kept_bytes : stage.again_bytes;
    room.held.emplace_back(piece.start_s, held);
    if (forward) continue;
    held -= stage.kept_bytes + stage.again_bytes;
    room.held.emplace_back(piece.end_s, held);
  }
  return room;
}

class MeshSearch {
 public:
  MeshSearch(const ModelCost& cost, const ClusterSheet& cluster, const ClusterDemand& demand)
      : cost_(cost), cluster_(cluster), profile_(cluster_profile(cluster)), demand_(demand) {}

  Result<std::vector<Strategy>> run() {
    ASSIGN_OR_RETURN(
        const std::vector<Mesh> possible,
        meshes(profile_, static_cast<int64_t>(cost_.layers.size()), most_experts(cost_)));
    for (const Mesh& mesh : possible) RETURN_IF_ERROR(try_mesh(mesh));
    if (strategies_.empty() && !tried_) {
      return Status(Exit::kUsage, strf("%lld sequences of a step cannot be divided among %lld "
                                       "devices in any way",
                                       (long long)demand_.sequences,
                                       (long long)profile_.devices()));
    }
    if (strategies_.empty()) return least_;
    return std::move(strategies_);
  }

 private:
  Status try_mesh(const Mesh& mesh);
  Status try_batch(const Strategy& strategy);
  Status try_strategy(Strategy strategy);

  const ModelCost& cost_;
  const ClusterSheet& cluster_;
  const ClusterProfile profile_;
  const ClusterDemand& demand_;
  std::vector<Strategy> strategies_;
  bool tried_ = false;
  Status least_;  // why the newest did not fit
};

Status MeshSearch::try_strategy(Strategy strategy) {
  tried_ = true;
  const auto step = mesh_step(cost_, cluster_, strategy);
  if (step.ok()) {
    fill_in(step.value(), cluster_.nodes.front(), strategy);
    strategies_.push_back(std::move(strategy));
    return Status();
  }
  if (step.status().code() != Exit::kDoesNotFit) return step.status();
  least_ = Status(Exit::kDoesNotFit, strategy.text() + ": " + step.status().message());
  return Status();
}

// Tries all places and formats of states. GPipe keeps more than 1F1B and is as fast if stages are
// equal: it is a strategy of its own only if it ends sooner, by more than rounding.
Status MeshSearch::try_batch(const Strategy& strategy) {
  for (const StateChoice& state : state_choices()) {
    Strategy tried = strategy;
    tried.state = state;
    const size_t before = strategies_.size();
    RETURN_IF_ERROR(try_strategy(tried));
    if (strategy.mesh.pipeline == 1 || strategies_.size() == before) continue;
    const double sooner_s = kSooner * strategies_.back().step_s;
    tried.schedule = PipelineSchedule::kGpipe;
    RETURN_IF_ERROR(try_strategy(tried));
    if (strategies_.back().step_s >= sooner_s) {
      strategies_.resize(before + 1);
    }
  }
  return Status();
}

Status MeshSearch::try_mesh(const Mesh& mesh) {
  const int64_t ranks = mesh.expert * mesh.data;
  if (demand_.sequences % ranks != 0 || !expert_group(profile_, mesh.expert).ok()) return Status();
  const int64_t sequences = demand_.sequences / ranks;
  const bool shared = mesh.expert > 1 && mesh.expert <= profile_.devices_per_node;
  for (int64_t m = 1; m <= sequences; ++m) {
    if (sequences % m != 0) continue;
    for (int s = 0; s < (shared ? 3 : 1); ++s) {
      Strategy strategy;
      strategy.mesh = mesh;
      strategy.batch = {demand_.sequence_len, sequences / m, m, SequencesOf::kRank};
      strategy.microbatches = static_cast<int32_t>(m);
      strategy.sharing = static_cast<ExpertSharing>(s);
      RETURN_IF_ERROR(try_batch(strategy));
    }
  }
  return Status();
}

}  // namespace

ClusterProfile cluster_profile(const ClusterSheet& cluster) {
  const MachineSheet& node = cluster.nodes.front();
  const ClusterSheet::Network& n = cluster.network;
  ClusterProfile profile;
  profile.nodes = static_cast<int64_t>(cluster.nodes.size());
  profile.devices_per_node = node.device.count;
  profile.nodes_per_switch =
      cluster.cluster.nodes_per_switch > 0 ? cluster.cluster.nodes_per_switch : profile.nodes;
  profile.in_switch = WorkClock::link(n.gb_s, n.latency_us);
  profile.between_switches =
      n.beyond_gb_s > 0 ? WorkClock::link(n.beyond_gb_s, n.beyond_latency_us) : profile.in_switch;
  profile.in_node = node.link.gb_s > 0 ? WorkClock::link(node.link.gb_s, node.link.latency_us)
                                       : profile.in_switch;
  return profile;
}

Result<MeshStep> mesh_step(const ModelCost& cost, const ClusterSheet& cluster,
                           const Strategy& strategy) {
  const ClusterProfile profile = cluster_profile(cluster);
  const MachineSheet& node = cluster.nodes.front();
  ASSIGN_OR_RETURN(FittedStages fitted, fit_stages(cost, node, strategy));
  MeshStep step;
  ASSIGN_OR_RETURN(step.updates, state_updates(node, strategy.state, fitted.most));
  const MeshChoices choices{strategy.sharing, strategy.schedule, std::move(fitted.recomputed)};
  ASSIGN_OR_RETURN(step.estimate,
                   forecast_mesh(cost, strategy.mesh, strategy.batch, profile, node, choices));
  step.stages = std::move(fitted.stages);
  return step;
}

Result<StrategyTimeline> mesh_timeline(const ModelCost& cost, const ClusterSheet& cluster,
                                       const Strategy& strategy) {
  ASSIGN_OR_RETURN(const MeshStep step, mesh_step(cost, cluster, strategy));
  const double gradients_end_s = step.estimate.times.step_s();
  StrategyTimeline timeline;
  timeline.end_s = step.step_s();
  for (size_t s = 0; s < step.stages.size(); ++s) {
    const std::string name = strf("stage %zu", s);
    const StageWork& work = step.estimate.stages[s];
    const std::vector<PipelinePiece>& pieces = step.estimate.run.stages[s];
    StrategyLane& lane = timeline.lanes.emplace_back(StrategyLane{name, "microbatch", {}});
    for (const PipelinePiece& piece : pieces) add_piece(piece, work, lane);
    const double end_s = step.estimate.run.end_s(s);
    if (work.gradients_s > 0) {
      lane.pieces.push_back({StrategyWork::kGradients, end_s, end_s + work.gradients_s});
    }
    timeline.memory.push_back(stage_room("device of " + name, pieces, step.stages[s],
                                         cluster.nodes.front().auto_device_bytes()));
  }
  timeline.lanes.push_back({strategy.state.on_host ? "hosts" : "updates",
                            "",
                            {{StrategyWork::kUpdates, gradients_end_s, timeline.end_s}}});
  return timeline;
}

Result<std::vector<Strategy>> search_meshes(const ModelCost& cost, const ClusterSheet& cluster,
                                            const ClusterDemand& demand) {
  return MeshSearch(cost, cluster, demand).run();
}

}  // namespace pagoda
