// Zebra groups over a cluster of two kinds of devices: one of all devices; several as stages of a
// pipeline (plan/zebra/zebra_pipeline.h), or as copies that each have a part of the tokens and sum
// their gradients with the others, or both. Groups are alike in their devices, and stages have as
// many layers as any other, give or take one. What each is for a model: times, and the memory of
// its devices. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/search/node_pair.h"
#include "plan/zebra/asym_ea.h"
#include "plan/zebra/zebra_pipeline.h"

namespace pagoda {

// PP x DP groups; both numbers of devices are multiples of that.
struct ZebraLayout {
  int32_t stages = 1;        // PP
  int32_t copies = 1;        // DP, of the pipeline
  int32_t chunks = 1;        // of a copy's tokens, by 1F1B; with one stage one after the other
  int32_t microbatches = 1;  // of a chunk
  bool send_again = false;   // inputs of experts, for the backward (plan/zebra/zebra.h)

  int32_t groups() const { return stages * copies; }
  bool operator==(const ZebraLayout&) const = default;
};

// One copy's step, of stages without offloaded experts. kUsage: what does not divide (devices,
// experts over a group's, sequences over copies, chunks, microbatches and a group's attention
// devices), more stages than layers; nothing that a sheet's check() refuses.
Result<ZebraPipeline> zebra_pipeline(const ModelShape& model, const ClusterSheet& cluster,
                                     const NodePair& kinds, const StepDemand& demand,
                                     const ZebraLayout& layout);

// No order of what a pipeline's stages do, and no assignment of experts within the bounds of each,
// ends sooner: in every stage each stream does its work one after the other. Seconds; O(stages).
double zebra_least_s(const ZebraPipeline& pipeline, std::span<const AsymBounds> bounds);

// Bytes of a device of one stage, of each kind. Kept are inputs of layers, the rest of a layer is
// computed again, so that there is room for one layer of one microbatch beside them.
//
// An attention device keeps what goes into each of the stage's layers, for every chunk that is
// between its forward and its backward, and where inputs of experts are sent again also those. An
// expert device keeps the rows of its experts, likewise; where they are sent again those of one
// layer and chunk, of which no more are ever on their strategy.
struct ZebraRoom {
  double attention_fixed = 0, expert_fixed = 0;    // weights, gradients, states, one layer's room
  double attention_inputs = 0, expert_inputs = 0;  // of one chunk in all layers
  int32_t chunks = 1;                              // the most at once
  double expert = 0;            // one expert's weights, gradients and states
  double expert_parameters = 0;
  double attention_parameters = 0;

  double attention_bytes() const { return attention_fixed + chunks * attention_inputs; }
  double expert_bytes() const { return expert_fixed + chunks * expert_inputs; }
};

class ZebraMemory {
 public:
  // The arguments must outlive it.
  ZebraMemory(const ModelCost& cost, const NodePair& kinds, const StepDemand& demand)
      : cost_(cost), kinds_(kinds), demand_(demand) {}

  // Of experts that can move, [stage]. kDoesNotFit naming a stage and what it lacks.
  Result<std::vector<AsymBounds>> bounds(const ZebraLayout& layout,
                                         const StateChoice& state) const;
  // With the experts that leave each layer, [layers]: of each stage; and the most of any.
  std::vector<ZebraRoom> rooms(const ZebraLayout& layout, const StateChoice& state,
                               const std::vector<int32_t>& offloaded) const;
  struct Fullest {
    double bytes = 0;  // of a device of either kind
    double attention_parameters = 0, expert_parameters = 0;
  };
  Fullest fullest(const ZebraLayout& layout, const StateChoice& state,
                  const std::vector<int32_t>& offloaded) const;

 private:
  // `given`: experts, all the stage's layers together, that each expert device leaves.
  ZebraRoom room(const ZebraLayout& layout, const StateChoice& state, int32_t stage,
                 double given) const;
  int32_t attention_devices(const ZebraLayout& l) const {
    return kinds_.faster_devices / l.groups();
  }
  int32_t expert_devices(const ZebraLayout& l) const { return kinds_.slower_devices / l.groups(); }

  const ModelCost& cost_;
  const NodePair& kinds_;
  const StepDemand& demand_;
};

}  // namespace pagoda
