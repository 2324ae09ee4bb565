// Ways to train a model on several devices, best first. On equal nodes: meshes of pipeline x
// experts x data (plan/mesh_search.h); on nodes of two kinds: zebra groups with Asym-EA, and the
// ways it is compared with (plan/two_kinds_search.h): expert parallelism, disaggregated experts,
// pipelines of whole layers. Pruned by memory, ranked by the time of a simulated step. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/machine_sheet.h"
#include "plan/model_shape.h"
#include "plan/step_estimate.h"
#include "plan/way_timeline.h"

namespace pagoda {

struct StepDemand {
  int64_t sequence_len = 0;  // tokens
  int64_t sequences = 0;     // of a step, all devices together
};

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
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
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
// of check_model. kDoesNotFit when none fits, naming one and what it lacks.
Result<std::vector<SearchedWay>> search_cluster(const ModelShape& model,
                                                const ClusterSheet& cluster,
                                                const StepDemand& demand);

// The fewest equal nodes on which a way fits, as text for a refusal.
std::string enough_nodes(const ModelShape& model, const ClusterSheet& cluster,
                         const StepDemand& demand);

// How a step of a way that was found runs. The errors of the search.
Result<WayTimeline> way_timeline(const ModelShape& model, const ClusterSheet& cluster,
                                 const StepDemand& demand, const SearchedWay& way);

}  // namespace pagoda
