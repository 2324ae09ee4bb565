// Strategies to train a model on nodes of two kinds, best first: zebra groups with Asym-EA, one, or
// several as stages, as copies or both (plan/search/zebra_search.h), and the strategies that they
// are compared with (plan/search/node_pair_search.h): expert parallelism, disaggregated experts,
// pipelines of whole layers, experts shared by speed. Strategies that lack memory are left out; the
// others are ranked by the time of a simulated step. Most are planned only (Strategy::runs); the
// layouts that a run has are searched by preview/layout_search.h. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_shape.h"
#include "plan/mesh/data_model_centric.h"
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

enum class StrategyKind : uint8_t { kZebra, kExpertParallel, kDisaggregated, kPipeline, kShared };

// Devices of a strategy that has groups of them: PP x EP x DP.
struct Mesh {
  int64_t pipeline = 1;  // PP, stages
  int64_t expert = 1;    // EP, devices that share the experts of a layer
  int64_t data = 1;      // DP, copies of the pipeline
};

struct Strategy {
  StrategyKind kind = StrategyKind::kZebra;
  double step_s = 0;
  double mfu = 0;            // share of all devices' peak
  int64_t device_bytes = 0;  // bytes of the fullest device
  int64_t host_bytes = 0;    // bytes of states on the fullest host
  Mesh mesh;                 // all set pipeline and data, kZebra also expert
  StateChoice state;
  int32_t microbatches = 1;                      // kZebra (in a chunk), kPipeline
  ExpertSharing sharing = ExpertSharing::kRows;  // kShared
  int32_t parts = 1;  // kExpertParallel, kDisaggregated: parts of each all-to-all
  // kZebra (plan/search/zebra_layout.h): mesh.pipeline x mesh.data groups
  int32_t attention_devices = 1;  // in a group, beside mesh.expert expert devices
  int32_t chunks = 1;
  bool send_again = false;
  std::vector<int32_t> offloaded;  // [layers]
  Lags lags;

  // Whether a run executes it: rows exchanged, and sent again for the backward; in stages with two
  // microbatches in a chunk.
  bool runs() const;
  std::string text() const;  // "zebra, 2 groups of 3 + 3 devices (PP 1 x DP 2), ..."
};

// kUsage: nodes of other than two kinds, sequences that no strategy divides, the errors of the
// sheets and of check_model. kDoesNotFit when no strategy fits, naming one and what it lacks.
Result<std::vector<Strategy>> search_cluster(const ModelShape& model, const ClusterSheet& cluster,
                                             const ClusterDemand& demand);

}  // namespace pagoda
