// The part of the search (plan/search/cluster_search.h) for clusters of equal nodes: every mesh of
// pipeline x experts x data, number of microbatches, schedule, sharing of experts, and place and
// format of optimizer states, each simulated. Pure.
//
// Where a stage's activations do not fit, the fewest of its layers are computed again in the
// backward (plan/mesh/recomputed_layers.h). Where states lie in host memory, their updates and what
// is copied for them come after the last stage's gradients; nothing hides them.
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/search/cluster_search.h"
#include "plan/search/host_updates.h"

namespace pagoda {

// A device of a stage. Bytes.
struct MeshStage {
  int64_t parameter_bytes = 0;  // and gradients, states, weights that pass through
  int64_t kept_bytes = 0;       // of each microbatch between its forward and its backward
  int64_t again_bytes = 0;      // while a layer is computed again
  int64_t recomputed_layers = 0;
  int64_t peak_bytes = 0;
};

// A strategy as it runs.
struct MeshStep {
  StepEstimate estimate;
  std::vector<MeshStage> stages;  // [PP]
  HostUpdates updates;            // after all that

  double step_s() const { return estimate.times.step_s() + updates.seconds; }
};

// As the cost model of meshes has a cluster of equal nodes.
ClusterProfile cluster_profile(const ClusterSheet& cluster);
DeviceRates device_rates(const MachineSheet& node);

// REQUIRES: equal nodes, a strategy of kMesh with its mesh, batch, sharing, schedule and state.
// kDoesNotFit, and the errors of estimate_step.
Result<MeshStep> mesh_step(const ModelCost& cost, const ClusterSheet& cluster,
                           const Strategy& strategy);

// A lane and a device of each stage. REQUIRES: as mesh_step; its errors.
Result<StrategyTimeline> mesh_timeline(const ModelCost& cost, const ClusterSheet& cluster,
                                       const Strategy& strategy);

// Unordered. kUsage: sequences that no mesh divides, the errors of the sheets. kDoesNotFit when
// none fits, naming one. O(meshes x divisors of the sequences x states) simulations of at most
// 2 PP M pieces.
Result<std::vector<Strategy>> search_meshes(const ModelCost& cost, const ClusterSheet& cluster,
                                            const StepDemand& demand);

}  // namespace pagoda
