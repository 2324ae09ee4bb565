// Two kinds of nodes in the form that zebra takes, and a model's step on them: its work
// (plan/zebra/heterogeneous_step.h) and the memory of its devices. Pure.
#pragma once

#include "base/status.h"
#include "plan/machine/model_cost.h"
#include "plan/search/cluster_search.h"
#include "plan/search/state_updates.h"
#include "plan/zebra/heterogeneous_step.h"

namespace pagoda {

// The devices that are faster at attention, and the slower ones.
struct NodePair {
  const MachineSheet* faster = nullptr;
  const MachineSheet* slower = nullptr;
  int32_t faster_devices = 0, slower_devices = 0;
};
// kUsage: other than two kinds.
Result<NodePair> node_pair(const ClusterSheet& cluster);

// kUsage: layers without experts; the errors of check_model.
Result<ModelCost> node_pair_cost(const ModelShape& model);

// One step's work on both kinds, for `demand` tokens and equal layers;
// plan/zebra/heterogeneous_step.h simulates it. REQUIRES: a model all of whose layers have experts.
HeterogeneousStep heterogeneous_step(const ModelShape& model, const ClusterSheet& cluster,
                                     const NodePair& kinds, const ClusterDemand& demand);

// The step of one of several copies, which have equal parts of the devices and of the tokens.
// REQUIRES: as for heterogeneous_step; `copies` divides both kinds' devices, and the sequences.
struct CopiedStep {
  NodePair kinds;
  ClusterDemand demand;
  HeterogeneousStep step;
};
CopiedStep copied_step(const ModelShape& model, const ClusterSheet& cluster, const NodePair& kinds,
                       const ClusterDemand& demand, int32_t copies);

// The memory of a device of each kind.
struct NodePairBytes {
  double faster = 0, slower = 0;
  DeviceParameters faster_parameters, slower_parameters;

  bool fit(const NodePair& kinds) const {
    return faster <= static_cast<double>(kinds.faster->auto_device_bytes()) &&
           slower <= static_cast<double>(kinds.slower->auto_device_bytes());
  }
};
// The updates after the step; nodes of both kinds work at once. kDoesNotFit: the hosts cannot hold
// the states.
Result<StateUpdates> node_pair_updates(const NodePair& kinds, const StateChoice& state,
                                       const DeviceParameters& faster,
                                       const DeviceParameters& slower);

// Memory for a step of `demand` in the strategies that zebra is compared with
// (plan/search/zebra_layout.h has zebra's own). Inputs of all layers are kept and the rest of a
// layer is computed again, so there is room for one layer of one microbatch beside them. The
// arguments must outlive it.
class NodePairMemory {
 public:
  NodePairMemory(const ModelCost& cost, const NodePair& kinds, const ClusterDemand& demand)
      : cost_(cost), kinds_(kinds), tokens_(step_tokens(demand)) {}

  // With everything on every device; and with attention on the faster ones, experts on the slower.
  NodePairBytes expert_parallel(const StateChoice& state) const;
  NodePairBytes disaggregated(const StateChoice& state) const;
  // The step for pipelines of whole layers (pipeline_step), each of which has its part of the
  // tokens, with the most layers that each device holds; 0 if it holds none.
  HeterogeneousStep bounded(const HeterogeneousStep& step, const StateChoice& state,
                            int32_t microbatches) const;
  NodePairBytes pipelined(const StateChoice& state, const PipelineStep& step,
                          int32_t microbatches) const;

 private:
  // Bytes of a stage without its layers, and of each layer.
  struct StageBytes {
    double fixed = 0, layer = 0;
  };
  static double step_tokens(const ClusterDemand& demand) {
    return static_cast<double>(demand.sequence_len) * static_cast<double>(demand.sequences);
  }
  StageBytes stage_bytes(const StateChoice& state, int32_t pipelines, int32_t microbatches) const;
  // What all layers have: the part of their experts on each of `devices`, and everything else.
  DeviceParameters experts(int32_t devices) const;
  DeviceParameters dense() const;
  DeviceParameters tables() const;
  DeviceParameters layer() const;           // one whole layer
  double inputs_bytes(double rows) const;   // of all layers
  double layer_bytes(double tokens) const;  // bytes that one layer keeps

  const ModelCost& cost_;
  const NodePair& kinds_;
  double tokens_;
};

}  // namespace pagoda
