// Two kinds of nodes as zebra takes them, and what a step of a model is on them: its work
// (plan/zebra/unequal_step.h) and the memory of its devices. Pure.
#pragma once

#include "base/status.h"
#include "plan/machine/model_cost.h"
#include "plan/search/cluster_search.h"
#include "plan/search/host_updates.h"
#include "plan/zebra/unequal_step.h"

namespace pagoda {

// Newer devices (the faster at attention) and older ones.
struct TwoKinds {
  const MachineSheet* newer = nullptr;
  const MachineSheet* older = nullptr;
  int32_t newer_devices = 0, older_devices = 0;
};
// kUsage: other than two kinds.
Result<TwoKinds> two_kinds(const ClusterSheet& cluster);

// kUsage: layers without experts; the errors of check_model.
Result<ModelCost> two_kinds_cost(const ModelShape& model);

// One step's work on both kinds, for `demand` tokens, all layers alike: what
// plan/zebra/unequal_step.h simulates. REQUIRES: a model all of whose layers have experts.
UnequalStep unequal_step(const ModelShape& model, const ClusterSheet& cluster,
                         const TwoKinds& kinds, const StepDemand& demand);

// The step of one of several copies, each of which has as many of the devices and of the tokens as
// any other. REQUIRES: as unequal_step; copies divide both kinds' devices, and the sequences.
struct CopiedStep {
  TwoKinds kinds;
  StepDemand demand;
  UnequalStep step;
};
CopiedStep copied_step(const ModelShape& model, const ClusterSheet& cluster, const TwoKinds& kinds,
                       const StepDemand& demand, int32_t copies);

// Of a device of each kind.
struct TwoKindsBytes {
  double newer = 0, older = 0;
  double newer_parameters = 0, older_parameters = 0;

  bool fit(const TwoKinds& kinds) const {
    return newer <= static_cast<double>(kinds.newer->auto_device_bytes()) &&
           older <= static_cast<double>(kinds.older->auto_device_bytes());
  }
};
// What updates on the hosts take after the step, where states are there; nodes of both kinds at
// once. kDoesNotFit: hosts that cannot hold them.
Result<HostUpdates> two_kinds_updates(const TwoKinds& kinds, const StateChoice& state,
                                      double newer_parameters, double older_parameters);

// Memory for a step of `demand` in the ways that zebra is compared with (of zebra:
// plan/search/zebra_layout.h). Inputs of all layers are kept, the rest of a layer is computed
// again, so that there is room for one layer of one microbatch beside them. The arguments must
// outlive it.
class TwoKindsMemory {
 public:
  TwoKindsMemory(const ModelCost& cost, const TwoKinds& kinds, const StepDemand& demand)
      : cost_(cost), kinds_(kinds), tokens_(step_tokens(demand)) {}

  // Everything on every device; and attention on the newer ones, experts on the older.
  TwoKindsBytes expert_parallel(const StateChoice& state) const;
  TwoKindsBytes disaggregated(const StateChoice& state) const;
  // Pipelines of whole layers (pipeline_step), of which each has its part of the tokens: with as
  // many layers on each device as it holds; 0 where it holds none.
  UnequalStep bounded(const UnequalStep& step, const StateChoice& state,
                      int32_t microbatches) const;
  TwoKindsBytes pipelined(const StateChoice& state, const PipelineStep& step,
                          int32_t microbatches) const;

 private:
  // Of a stage, whatever its layers, and for each of them.
  struct StageBytes {
    double fixed = 0, layer = 0;
  };
  static double step_tokens(const StepDemand& demand) {
    return static_cast<double>(demand.sequence_len) * static_cast<double>(demand.sequences);
  }
  StageBytes stage_bytes(const StateChoice& state, int32_t pipelines, int32_t microbatches) const;
  double expert_parameters() const;  // of all layers
  double dense_parameters() const;   // of everything else
  double table_parameters() const;
  double inputs_bytes(double rows) const;   // of all layers
  double layer_bytes(double tokens) const;  // of one, what it keeps

  const ModelCost& cost_;
  const TwoKinds& kinds_;
  double tokens_;
};

}  // namespace pagoda
