// Two kinds of nodes as zebra takes them, and what a step of a model is on them: its work
// (plan/unequal_step.h) and the memory of its devices. Pure.
#pragma once

#include "base/status.h"
#include "plan/cluster_search.h"
#include "plan/model_cost.h"
#include "plan/unequal_step.h"

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

// One step's work on both kinds, for `demand` tokens, all layers alike: what plan/unequal_step.h
// simulates. REQUIRES: a model all of whose layers have experts.
UnequalStep unequal_step(const ModelShape& model, const ClusterSheet& cluster,
                         const TwoKinds& kinds, const StepDemand& demand);

// Bytes of one device for a step of `demand`. Inputs of all layers are kept, the rest of a layer is
// computed again, so that there is room for one layer of one microbatch beside them. The arguments
// must outlive it.
class TwoKindsMemory {
 public:
  TwoKindsMemory(const ModelCost& cost, const TwoKinds& kinds, const StepDemand& demand)
      : cost_(cost),
        kinds_(kinds),
        tokens_(static_cast<double>(demand.sequence_len) * static_cast<double>(demand.sequences)) {}

  double tokens() const { return tokens_; }  // of the step
  double expert_bytes(const StateChoice& state) const;  // of an expert, with gradient and state
  double experts_bytes(const StateChoice& state) const;  // of all experts of all layers
  double dense_bytes(const StateChoice& state) const;    // of everything else
  double inputs_bytes(double rows) const;   // of all layers
  double layer_bytes(double tokens) const;  // of one, what it keeps

  // Zebra: what there is all the time and room for a layer, without experts; and inputs, of which
  // an expert device has those of its rows.
  double attention_room(const StateChoice& state, int32_t microbatches) const {
    return dense_bytes(state) + layer_bytes(tokens_ / kinds_.newer_devices / microbatches);
  }
  double expert_room(int32_t microbatches) const {
    return layer_bytes(tokens_ / kinds_.older_devices / microbatches);
  }
  double attention_inputs() const { return inputs_bytes(tokens_ / kinds_.newer_devices); }
  double expert_inputs() const;
  // With the experts that each has.
  struct ZebraRoom {
    double attention_bytes = 0, expert_bytes = 0;
  };
  ZebraRoom zebra_room(const SearchedWay& way) const;

  // Pipelines of whole layers: of a stage, whatever its layers, and for each of them.
  struct StageBytes {
    double fixed = 0, layer = 0;
  };
  StageBytes stage_bytes(const StateChoice& state, int32_t microbatches) const;
  // With as many layers on each device as it holds, at least one; 0 where it holds none.
  UnequalStep bounded(const UnequalStep& step, const StateChoice& state,
                      int32_t microbatches) const;

 private:
  const ModelCost& cost_;
  const TwoKinds& kinds_;
  double tokens_;
};

}  // namespace pagoda
