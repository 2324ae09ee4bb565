// The part of the search (plan/search/cluster_search.h) for clusters of equal nodes: it simulates
// every mesh of pipeline x experts x data with every number of microbatches, schedule, sharing of
// experts, and place and format of optimizer states. Pure.
//
// If a stage's activations do not fit, the fewest of its layers are computed again in the backward
// (plan/mesh/recomputed_layers.h). Updates come after the last stage's gradients
// (plan/search/state_updates.h).
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/search/cluster_search.h"
#include "plan/search/state_updates.h"

namespace pagoda {

// Bytes on a device of a stage.
struct MeshStage {
  int64_t parameter_bytes = 0;  // parameters, gradients, states, and weights that pass through
  int64_t kept_bytes = 0;       // for each microbatch between its forward and its backward
  int64_t again_bytes = 0;      // while a layer is computed again
  int64_t recomputed_layers = 0;
  int64_t peak_bytes = 0;
};

// The simulated step of a strategy.
struct MeshStep {
  MeshForecast estimate;
  std::vector<MeshStage> stages;  // [PP]
  StateUpdates updates;           // after the estimate's step

  double step_s() const { return estimate.times.step_s() + updates.seconds; }
};

// A cluster of equal nodes in the form of the cost model of meshes.
ClusterProfile cluster_profile(const ClusterSheet& cluster);

// REQUIRES: equal nodes, a strategy of kMesh with its mesh, batch, sharing, schedule and state.
// kDoesNotFit, and the errors of forecast_mesh.
Result<MeshStep> mesh_step(const ModelCost& cost, const ClusterSheet& cluster,
                           const Strategy& strategy);

// The timeline has a lane and a device for each stage. REQUIRES: as for mesh_step. Returns its
// errors.
Result<StrategyTimeline> mesh_timeline(const ModelCost& cost, const ClusterSheet& cluster,
                                       const Strategy& strategy);

// Returns the strategies unordered. kUsage: sequences that no mesh divides, the errors of the
// sheets. kDoesNotFit when no mesh fits, naming one. O(meshes x divisors of the sequences x states)
// simulations of at most 2 PP M pieces.
Result<std::vector<Strategy>> search_meshes(const ModelCost& cost, const ClusterSheet& cluster,
                                            const ClusterDemand& demand);

}  // namespace pagoda
