#include "plan/cluster_search.h"

#include <algorithm>

#include "plan/mesh_search.h"
#include "plan/refusals.h"
#include "plan/two_kinds_search.h"

namespace pagoda {
namespace {

const char* sharing_name(ExpertSharing sharing) {
  switch (sharing) {
    case ExpertSharing::kRows: return "rows exchanged";
    case ExpertSharing::kDataCentric: return "data-centric";
    case ExpertSharing::kModelCentric: return "model-centric";
  }
  return "";
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

std::string SearchedWay::text() const {
  const auto n = [](int64_t value) { return static_cast<long long>(value); };
  switch (kind) {
    case WayKind::kMesh:
      return strf("PP %lld x EP %lld x DP %lld, %d microbatches%s, %s, %s", n(mesh.pipeline),
                  n(mesh.expert), n(mesh.data), microbatches,
                  schedule == PipelineSchedule::kGpipe ? " (GPipe)" : "", sharing_name(sharing),
                  state.name) +
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
    ASSIGN_OR_RETURN(ways, search_meshes(cost, cluster, demand));
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

Result<WayTimeline> way_timeline(const ModelShape& model, const ClusterSheet& cluster,
                                 const StepDemand& demand, const SearchedWay& way) {
  if (way.kind != WayKind::kMesh) return two_kinds_timeline(model, cluster, demand, way);
  ASSIGN_OR_RETURN(const ModelCost cost, model_cost(model));
  return mesh_timeline(cost, cluster, way);
}

}  // namespace pagoda
