// Strategies to train a model on several devices, best first. On equal nodes: meshes of pipeline x
// experts x data (plan/search/mesh_search.h); on nodes of two kinds: zebra groups with Asym-EA,
// one, or several as stages, as copies or both (plan/search/zebra_search.h), and the strategies
// that they are compared with (plan/search/node_pair_search.h): expert parallelism, disaggregated
// experts, pipelines of whole layers, experts shared by speed. Strategies that lack memory are left
// out; the others are ranked by the time of a simulated step. Most are planned only
// (Strategy::runs). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_shape.h"
#include "plan/mesh/mesh_forecast.h"
#include "plan/search/strategy_timeline.h"
#include "plan/zebra/zebra.h"

namespace pagoda {

struct ClusterDemand {
  int64_t sequence_len = 0;  // tokens
  int64_t sequences = 0;     // sequences of a step, all devices together
};

// Bytes of each parameter, beside 2 of weights and 2 of gradients on the device.
struct StateChoice {
  const char* name = "";
  double state_bytes = 10;
  bool on_host = false;

  // Bytes of a parameter on the device: bf16 weight and gradient, and its state unless that is on
  // the host.
  double device_bytes() const { return 4 + (on_host ? 0 : state_bytes); }
};
// Masters and moments in fp32, bf16 and 8 bits, on the device and in host memory.
const std::vector<StateChoice>& state_choices();

enum class StrategyKind : uint8_t {
  kMesh,
  kZebra,
  kExpertParallel,
  kDisaggregated,
  kPipeline,
  kShared
};

struct Strategy {
  StrategyKind kind = StrategyKind::kMesh;
  double step_s = 0;
  double mfu = 0;            // share of all devices' peak
  int64_t device_bytes = 0;  // bytes of the fullest device
  int64_t host_bytes = 0;    // bytes of states on the fullest host
  Mesh mesh;                 // other kinds than kMesh set pipeline and data, kZebra also expert
  StateChoice state;
  int32_t microbatches = 1;  // kMesh, kZebra (in a chunk), kPipeline
  ExpertSharing sharing = ExpertSharing::kRows;  // kMesh, kShared
  // kMesh
  PipelineBatch batch;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t recomputed_layers = 0;  // layers of the stage with most
  int32_t parts = 1;  // kExpertParallel, kDisaggregated: parts of each all-to-all
  // kZebra (plan/search/zebra_layout.h): mesh.pipeline x mesh.data groups
  int32_t attention_devices = 1;  // in a group, beside mesh.expert expert devices
  int32_t chunks = 1;
  bool send_again = false;
  std::vector<int32_t> offloaded;  // [layers]
  Lags lags;

  // Whether a run executes it: no copies of the model, rows exchanged, and sent again for the
  // backward; stages of as many layers.
  bool runs() const;
  std::string text() const;  // "PP 2 x EP 8 x DP 2, 16 microbatches, ..."
};

// kUsage: nodes of more than two kinds, sequences that no strategy divides, the errors of the
// sheets and of check_model. kDoesNotFit when no strategy fits, naming one and what it lacks.
Result<std::vector<Strategy>> search_cluster(const ModelShape& model, const ClusterSheet& cluster,
                                             const ClusterDemand& demand);

// The timeline of a step of a strategy that was found. Returns the errors of the search.
Result<StrategyTimeline> strategy_timeline(const ModelShape& model, const ClusterSheet& cluster,
                                           const ClusterDemand& demand, const Strategy& strategy);

}  // namespace pagoda
