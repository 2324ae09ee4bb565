#include "plan/cluster_search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "plan/device_shares.h"
#include "plan/recomputed_layers.h"
#include "plan/refusals.h"
#include "plan/two_kinds_search.h"

namespace pagoda {
namespace {

constexpr double kGiga = 1e9, kMicro = 1e-6;
constexpr double kDeviceBytes = 4;  // of a parameter: bf16 weight and gradient

const char* sharing_name(ExpertSharing sharing) {
  switch (sharing) {
    case ExpertSharing::kRows: return "rows exchanged";
    case ExpertSharing::kDataCentric: return "data-centric";
    case ExpertSharing::kModelCentric: return "model-centric";
  }
  return "";
}

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

struct Recomputed {
  int64_t layers = 0;      // of the stage with most
  double share = 0;        // of its layers
  int64_t peak_bytes = 0;  // of the fullest stage
  int64_t parameters = 0;  // of the device with most
};

Result<Recomputed> fit_stages(const ModelCost& cost, const ClusterProfile& cluster,
                              const SearchedWay& way) {
  MemoryOptions options;
  options.replicated_bytes = options.expert_bytes =
      kDeviceBytes + (way.state.on_host ? 0 : way.state.state_bytes);
  const int64_t cache = cache_bytes(cost, way.sharing);
  Recomputed most;
  for (int64_t stage = 0; stage < way.mesh.pipeline; ++stage) {
    ASSIGN_OR_RETURN(const StageMemory memory,
                     stage_memory(cost, way.mesh, way.batch, options, stage));
    const int64_t room = std::max<int64_t>(0, cluster.device_bytes - cache);
    ASSIGN_OR_RETURN(const RecomputedLayers again, fewest_recomputed(memory, room));
    const auto layers = static_cast<int64_t>(again.layers.size());
    most.layers = std::max(most.layers, layers);
    most.share = std::max(most.share, static_cast<double>(layers) /
                                          static_cast<double>(memory.layer_bytes.size()));
    most.peak_bytes = std::max(most.peak_bytes, again.peak_bytes + cache);
    most.parameters =
        std::max(most.parameters, memory.parameters.replicated + memory.parameters.experts);
  }
  return most;
}

// Updates of a node's devices on its host, with gradients that come down and weights that go up.
Result<double> host_updates_s(const MachineSheet& node, const SearchedWay& way,
                              int64_t parameters) {
  const auto of_device = static_cast<double>(parameters);
  const auto devices = static_cast<double>(node.device.count);
  const double state_bytes = of_device * devices * way.state.state_bytes;
  if (state_bytes > static_cast<double>(node.auto_host_bytes())) {
    return Status(Exit::kDoesNotFit, strf("states take %s of each host, which has %s",
                                          format_bytes(static_cast<int64_t>(state_bytes)).c_str(),
                                          format_bytes(node.auto_host_bytes()).c_str()));
  }
  const double moved = of_device * devices * (6 + 2 * way.state.state_bytes);
  return moved / (node.host.adam_gb_s * kGiga) + 2 * of_device * 2 / (node.host.copy_gb_s * kGiga);
}

class MeshSearch {
 public:
  MeshSearch(const ModelCost& cost, const ClusterSheet& cluster, const StepDemand& demand)
      : cost_(cost), cluster_(cluster), profile_(cluster_profile(cluster)), demand_(demand) {}

  Result<std::vector<SearchedWay>> run() {
    ASSIGN_OR_RETURN(
        const std::vector<Mesh> possible,
        meshes(profile_, static_cast<int64_t>(cost_.layers.size()), most_experts(cost_)));
    for (const Mesh& mesh : possible) RETURN_IF_ERROR(try_mesh(mesh));
    if (ways_.empty() && !tried_) {
      return Status(Exit::kUsage, strf("%lld sequences of a step cannot be divided among %lld "
                                       "devices in any way",
                                       (long long)demand_.sequences,
                                       (long long)profile_.devices()));
    }
    if (ways_.empty()) return least_;
    return std::move(ways_);
  }

 private:
  Status try_mesh(const Mesh& mesh);
  Status try_way(SearchedWay way);

  const ModelCost& cost_;
  const ClusterSheet& cluster_;
  const ClusterProfile profile_;
  const StepDemand& demand_;
  std::vector<SearchedWay> ways_;
  bool tried_ = false;
  Status least_;  // why the newest did not fit
};

Status MeshSearch::try_way(SearchedWay way) {
  tried_ = true;
  const Status status = time_mesh(cost_, cluster_, way);
  if (status.ok()) {
    ways_.push_back(std::move(way));
    return Status();
  }
  if (status.code() != Exit::kDoesNotFit) return status;
  least_ = Status(Exit::kDoesNotFit, way.text() + ": " + status.message());
  return Status();
}

Status MeshSearch::try_mesh(const Mesh& mesh) {
  const int64_t ranks = mesh.expert * mesh.data;
  if (demand_.sequences % ranks != 0 || !expert_group(profile_, mesh.expert).ok()) return Status();
  const int64_t sequences = demand_.sequences / ranks;
  const bool shared = mesh.expert > 1 && mesh.expert <= profile_.devices_per_node;
  for (int64_t m = 1; m <= sequences; ++m) {
    if (sequences % m != 0) continue;
    for (const StateChoice& state : state_choices()) {
      for (int s = 0; s < (shared ? 3 : 1); ++s) {
        SearchedWay way;
        way.mesh = mesh;
        way.batch = {demand_.sequence_len, sequences / m, m, SequencesOf::kRank};
        way.microbatches = static_cast<int32_t>(m);
        way.state = state;
        way.sharing = static_cast<ExpertSharing>(s);
        RETURN_IF_ERROR(try_way(std::move(way)));
      }
    }
  }
  return Status();
}

}  // namespace

const std::vector<StateChoice>& state_choices() {
  // As optim/state_format.h lays them out: what a bf16 weight lacks of its master, and two moments.
  static const std::vector<StateChoice> kChoices = {
      {"fp32 states", 10, false},       {"bf16 states", 6, false},
      {"8bit states", 4.04, false},     {"fp32 states in host memory", 10, true},
      {"8bit states in host memory", 4.04, true}};
  return kChoices;
}

ClusterProfile cluster_profile(const ClusterSheet& cluster) {
  const MachineSheet& node = cluster.nodes.front();
  const auto link = [](double gb_s, double latency_us) {
    return Cost{kMicro * latency_us, 1 / (gb_s * kGiga), 0};
  };
  const ClusterSheet::Network& n = cluster.network;
  ClusterProfile profile;
  profile.nodes = static_cast<int64_t>(cluster.nodes.size());
  profile.devices_per_node = node.device.count;
  profile.nodes_per_switch =
      cluster.cluster.nodes_per_switch > 0 ? cluster.cluster.nodes_per_switch : profile.nodes;
  profile.device_bytes = node.auto_device_bytes();
  profile.in_switch = link(n.gb_s, n.latency_us);
  profile.between_switches = n.beyond_gb_s > 0 ? link(n.beyond_gb_s, n.beyond_latency_us)
                                               : profile.in_switch;
  profile.in_node =
      node.link.gb_s > 0 ? link(node.link.gb_s, node.link.latency_us) : profile.in_switch;
  return profile;
}

DeviceRates device_rates(const MachineSheet& node) {
  constexpr double kTera = 1e12;
  return {node.device.peak_tflops * kTera, node.device.gemm_tflops * kTera,
          node.device.gemm_tflops * kTera};
}

Status time_mesh(const ModelCost& cost, const ClusterSheet& cluster, SearchedWay& way) {
  const ClusterProfile profile = cluster_profile(cluster);
  const MachineSheet& node = cluster.nodes.front();
  ASSIGN_OR_RETURN(const Recomputed again, fit_stages(cost, profile, way));
  double updates_s = 0;
  if (way.state.on_host) {
    ASSIGN_OR_RETURN(updates_s, host_updates_s(node, way, again.parameters));
  }
  ASSIGN_OR_RETURN(StepEstimate estimate, estimate_step(cost, way.mesh, way.batch, profile,
                                                        device_rates(node), way.sharing));
  // A forward more, of three, of the layers that are computed again; in the bubble too.
  const double slower = again.share / 3;
  const auto m = static_cast<double>(way.batch.microbatches);
  const double more_s =
      slower * estimate.times.compute_s *
      (1 + static_cast<double>(way.mesh.pipeline - 1) / m);
  way.recomputed_layers = again.layers;
  way.device_bytes = again.peak_bytes;
  way.step_s = estimate.times.step_s() + more_s + updates_s;
  way.mfu = estimate.model_flops / (device_rates(node).peak_flops_per_s * way.step_s *
                                    static_cast<double>(way.mesh.devices()));
  return Status();
}

std::string SearchedWay::text() const {
  const auto n = [](int64_t value) { return static_cast<long long>(value); };
  switch (kind) {
    case WayKind::kMesh:
      return strf("PP %lld x EP %lld x DP %lld, %d microbatches, %s, %s", n(mesh.pipeline),
                  n(mesh.expert), n(mesh.data), microbatches, sharing_name(sharing), state.name) +
             (recomputed_layers > 0
                  ? strf(", %lld layers of a stage computed again", n(recomputed_layers))
                  : "");
    case WayKind::kZebra: {
      int64_t moved = 0;
      for (const int32_t experts : offloaded) moved += experts;
      return strf("zebra, %d microbatches, %s, %lld experts on attention devices", microbatches,
                  state.name, n(moved));
    }
    case WayKind::kExpertParallel: return "expert parallel over both kinds of devices";
    case WayKind::kDisaggregated: return "attention on the newer devices, experts on the older";
    case WayKind::kPipeline:
      return strf("pipelines of whole layers, %d microbatches", microbatches);
  }
  return "";
}

Result<std::vector<SearchedWay>> search_cluster(const ModelShape& model,
                                                const ClusterSheet& cluster,
                                                const StepDemand& demand) {
  RETURN_IF_ERROR(cluster.check());
  RETURN_IF_ERROR(check_integer("sequence_len", demand.sequence_len));
  RETURN_IF_ERROR(check_integer("the sequences of a step", demand.sequences));
  std::vector<SearchedWay> ways;
  if (cluster.equal_nodes()) {
    ASSIGN_OR_RETURN(const ModelCost cost, model_cost(model));
    ASSIGN_OR_RETURN(ways, MeshSearch(cost, cluster, demand).run());
  } else {
    ASSIGN_OR_RETURN(ways, search_two_kinds(model, cluster, demand));
  }
  std::stable_sort(ways.begin(), ways.end(), [](const SearchedWay& a, const SearchedWay& b) {
    return a.step_s < b.step_s;
  });
  return ways;
}

std::string enough_nodes(const ModelShape& model, const ClusterSheet& cluster,
                         const StepDemand& demand) {
  constexpr size_t kMostNodes = 64;
  if (!cluster.equal_nodes()) return "larger devices or shorter states would have to hold it";
  ClusterSheet more = cluster;
  while (more.nodes.size() < kMostNodes) {
    const std::vector<MachineSheet> as_many = more.nodes;
    more.nodes.insert(more.nodes.end(), as_many.begin(), as_many.end());
    const auto ways = search_cluster(model, more, demand);
    if (!ways.ok()) continue;
    return strf("it fits on %zu such nodes: ", more.nodes.size()) + ways.value().front().text();
  }
  return strf("it does not fit on %zu such nodes with %lld sequences a step", kMostNodes,
              (long long)demand.sequences);
}

}  // namespace pagoda
