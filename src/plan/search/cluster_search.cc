#include "plan/search/cluster_search.h"

#include <algorithm>

#include "plan/refusals.h"
#include "plan/search/mesh_search.h"
#include "plan/search/two_kinds_search.h"

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

// "1 microbatch", "8 microbatches".
std::string counted(int64_t count, const char* one, const char* more) {
  return strf("%lld %s", static_cast<long long>(count), count == 1 ? one : more);
}

std::string microbatches_text(int64_t count) {
  return counted(count, "microbatch", "microbatches");
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
      return strf("PP %lld x EP %lld x DP %lld, %s%s, %s, %s", n(mesh.pipeline),
                  n(mesh.expert), n(mesh.data), microbatches_text(microbatches).c_str(),
                  schedule == PipelineSchedule::kGpipe ? " (GPipe)" : "", sharing_name(sharing),
                  state.name) +
             (recomputed_layers > 0
                  ? ", " + counted(recomputed_layers, "layer", "layers") +
                        " of a stage computed again"
                  : "");
    case WayKind::kZebra: {
      int64_t moved = 0;
      for (const int32_t experts : offloaded) moved += experts;
      return strf("zebra, %s of %d + %lld devices (PP %lld x DP %lld), %s, %s, %s on attention "
                  "devices%s",
                  counted(mesh.pipeline * mesh.data, "group", "groups").c_str(),
                  attention_devices, n(mesh.expert), n(mesh.pipeline), n(mesh.data),
                  chunks > 1 ? strf("%d x %s", chunks, microbatches_text(microbatches).c_str())
                                   .c_str()
                             : microbatches_text(microbatches).c_str(),
                  state.name,
                  counted(moved * mesh.expert * mesh.data, "expert", "experts").c_str(),
                  send_again ? ", inputs of experts sent again" : "");
    }
    case WayKind::kExpertParallel:
      return strf("expert parallel over both kinds of devices, DP %lld, all-to-alls in %s, %s",
                  n(mesh.data), counted(parts, "part", "parts").c_str(), state.name);
    case WayKind::kDisaggregated:
      return strf("attention on the newer devices, experts on the older, DP %lld, all-to-alls in "
                  "%s, %s",
                  n(mesh.data), counted(parts, "part", "parts").c_str(), state.name);
    case WayKind::kShared:
      return strf("%s over both kinds of devices, shares by their speed, %s",
                  sharing_name(sharing), state.name);
    case WayKind::kPipeline:
      return strf("pipelines of whole layers, PP %lld x DP %lld, %s, %s", n(mesh.pipeline),
                  n(mesh.data), microbatches_text(microbatches).c_str(), state.name);
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

Result<WayTimeline> way_timeline(const ModelShape& model, const ClusterSheet& cluster,
                                 const StepDemand& demand, const SearchedWay& way) {
  if (way.kind != WayKind::kMesh) return two_kinds_timeline(model, cluster, demand, way);
  ASSIGN_OR_RETURN(const ModelCost cost, model_cost(model));
  return mesh_timeline(cost, cluster, way);
}

}  // namespace pagoda
