// Ways to train a model on several devices, best first. On equal nodes: every mesh of pipeline x
// experts x data, number of microbatches, sharing of experts and place and format of optimizer
// states; on nodes of two kinds: zebra groups with Asym-EA, and the ways it is compared with
// (expert parallelism, disaggregated experts, pipelines of whole layers). Pruned by memory, ranked
// by the time of a step: meshes by Piper's estimator (plan/step_estimate.h), the others by
// simulated streams (plan/zebra.h, plan/unequal_step.h). Pure.
//
// Where a stage's activations do not fit, the fewest of its layers are computed again
// (plan/recomputed_layers.h), and the step is as much longer. Where states lie in host memory,
// their updates and what is copied for them come after the backward; nothing hides them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/machine_sheet.h"
#include "plan/model_shape.h"
#include "plan/ranked_meshes.h"

namespace pagoda {

// Bytes of each parameter, beside 2 of weights and 2 of gradients on the device.
struct StateChoice {
  const char* name = "";
  double state_bytes = 10;
  bool on_host = false;
};
// Masters and moments in fp32, bf16 and 8 bits, on the device and in host memory.
const std::vector<StateChoice>& state_choices();

enum class WayKind : uint8_t { kMesh, kZebra, kExpertParallel, kDisaggregated, kPipeline };

struct SearchedWay {
  WayKind kind = WayKind::kMesh;
  double step_s = 0;
  double mfu = 0;            // of all devices' peak
  int64_t device_bytes = 0;  // of the fullest device
  // kMesh
  Mesh mesh;
  PipelineBatch batch;
  ExpertSharing sharing = ExpertSharing::kRows;
  int64_t recomputed_layers = 0;  // of the stage with most
  // kMesh, kZebra
  StateChoice state;
  int32_t microbatches = 1;
  // kZebra
  std::vector<int32_t> offloaded;  // [layers]

  std::string text() const;  // "PP 2 x EP 8 x DP 2, 16 microbatches, ..."
};

// kUsage: nodes of more than two kinds, sequences that no way divides, the errors of the sheets and
// of check_model. kDoesNotFit when none fits, naming what takes least.
// O(meshes x divisors of the sequences x states) estimates.
Result<std::vector<SearchedWay>> search_cluster(const ModelShape& model,
                                                const ClusterSheet& cluster,
                                                const StepDemand& demand);

// The fewest equal nodes on which a way fits, as text for a refusal.
std::string enough_nodes(const ModelShape& model, const ClusterSheet& cluster,
                         const StepDemand& demand);

// The parts that the search is made of, for one way at a time.

// As the cost model of meshes has a cluster of equal nodes.
ClusterProfile cluster_profile(const ClusterSheet& cluster);
DeviceRates device_rates(const MachineSheet& node);
// Adds time, memory and recomputation to a mesh, its batch, sharing and state. kDoesNotFit, and the
// errors of estimate_step.
Status time_mesh(const ModelCost& cost, const ClusterSheet& cluster, SearchedWay& way);

// The kinds of devices as zebra takes them: newer ones (the faster at attention) and older, what
// each takes for all tokens of the step, and what moves between them.
struct TwoKinds {
  const MachineSheet* newer = nullptr;
  const MachineSheet* older = nullptr;
  int32_t newer_devices = 0, older_devices = 0;
};
Result<TwoKinds> two_kinds(const ClusterSheet& cluster);

}  // namespace pagoda
