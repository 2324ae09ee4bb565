#include "plan/ranked_meshes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

struct Search {
  std::vector<RankedMesh> ranked;
  std::optional<RankedMesh> leanest;  // of all tried, whether it fits or not
};

// All numbers of microbatches that divide the sequences of a device.
Status try_mesh(const ModelCost& model, const ClusterProfile& cluster, const DeviceRates& rates,
                const MemoryOptions& memory, const StepDemand& demand, const Mesh& mesh,
                Search& search) {
  const int64_t ranks = mesh.expert * mesh.data;
  if (demand.sequences % ranks != 0 || !expert_group(cluster, mesh.expert).ok()) return Status();
  const int64_t sequences = demand.sequences / ranks;
  for (int64_t microbatches = 1; microbatches <= sequences; ++microbatches) {
    if (sequences % microbatches != 0) continue;
    RankedMesh way;
    way.mesh = mesh;
    way.batch = {demand.sequence_len, sequences / microbatches, microbatches, SequencesOf::kRank};
    ASSIGN_OR_RETURN(way.fullest, fullest_stage(model, mesh, way.batch, memory));
    if (!search.leanest || way.fullest.peak_bytes < search.leanest->fullest.peak_bytes) {
      search.leanest = way;
    }
    if (way.fullest.peak_bytes > cluster.device_bytes) continue;
    ASSIGN_OR_RETURN(way.estimate, estimate_step(model, mesh, way.batch, cluster, rates));
    search.ranked.push_back(way);
  }
  return Status();
}

Status nothing_found(const Search& search, const ClusterProfile& cluster,
                     const StepDemand& demand) {
  if (!search.leanest) {
    return Status(Exit::kUsage,
                  strf("%lld sequences of a step cannot be divided among %lld devices in any way",
                       (long long)demand.sequences, (long long)cluster.devices()));
  }
  const RankedMesh& least = *search.leanest;
  return Status(Exit::kDoesNotFit,
                strf("no way to train fits: PP %lld x EP %lld x DP %lld with %lld microbatches "
                     "takes least, %s of each device, which has %s",
                     (long long)least.mesh.pipeline, (long long)least.mesh.expert,
                     (long long)least.mesh.data, (long long)least.batch.microbatches,
                     format_bytes_up(least.fullest.peak_bytes).c_str(),
                     format_bytes(cluster.device_bytes).c_str()));
}

}  // namespace

Result<std::vector<RankedMesh>> ranked_meshes(const ModelCost& model,
                                              const ClusterProfile& cluster,
                                              const DeviceRates& rates,
                                              const MemoryOptions& memory,
                                              const StepDemand& demand) {
  RETURN_IF_ERROR(check_cluster(cluster));
  RETURN_IF_ERROR(check_integer("sequence_len", demand.sequence_len));
  RETURN_IF_ERROR(check_integer("the sequences of a step", demand.sequences));
  ASSIGN_OR_RETURN(
      const std::vector<Mesh> possible,
      meshes(cluster, static_cast<int64_t>(model.layers.size()), most_experts(model)));
  Search search;
  for (const Mesh& mesh : possible) {
    RETURN_IF_ERROR(try_mesh(model, cluster, rates, memory, demand, mesh, search));
  }
  if (search.ranked.empty()) return nothing_found(search, cluster, demand);
  std::stable_sort(search.ranked.begin(), search.ranked.end(),
                   [](const RankedMesh& a, const RankedMesh& b) {
                     return a.estimate.times.step_s() < b.estimate.times.step_s();
                   });
  return std::move(search.ranked);
}

}  // namespace pagoda
