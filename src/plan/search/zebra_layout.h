// Zebra groups over a cluster of two kinds of devices: one of all devices; several as stages of a
// pipeline (plan/zebra/zebra_pipeline.h), or as copies that each have a part of the tokens and sum
// their gradients with the others, or both. Groups have equal devices, and all stages have the same
// number of layers, give or take one. For a model, a layout has times and the memory of its
// devices. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/search/node_pair.h"
#include "plan/zebra/asym_ea.h"
#include "plan/zebra/zebra_pipeline.h"

namespace pagoda {

// PP x DP groups; the number of devices of each kind is a multiple of that.
struct ZebraLayout {
  int32_t stages = 1;        // PP
  int32_t copies = 1;        // DP, copies of the pipeline
  int32_t chunks = 1;        // of a copy's tokens, by 1F1B; with one stage they run one after the
                             // other
  int32_t microbatches = 1;  // microbatches of a chunk
  bool send_again = false;   // send inputs of experts again for the backward (plan/zebra/zebra.h)

  int32_t groups() const { return stages * copies; }
  bool operator==(const ZebraLayout&) const = default;
};

// One copy's step, in stages without offloaded experts. kUsage: numbers that do not divide
// (devices; experts over a group's; sequences over copies, chunks, microbatches and a group's
// attention devices), more stages than layers. REQUIRES: sheets that pass check().
Result<ZebraPipeline> zebra_pipeline(const ModelShape& model, const ClusterSheet& cluster,
                                     const NodePair& kinds, const ClusterDemand& demand,
                                     const ZebraLayout& layout);

// A lower bound, in seconds, for any order of the stages' work and any assignment of experts within
// the bounds: in every stage each stream does its work one after the other. O(stages).
double zebra_least_s(const ZebraPipeline& pipeline, std::span<const AsymBounds> bounds);

// Bytes of a device of each kind in one stage. Inputs of layers are kept and the rest of a layer is
// computed again, so there is room for one layer of one microbatch beside them.
//
// An attention device keeps the inputs of the stage's layers for every chunk between its forward
// and its backward, and also those of experts if they are sent again. An expert device keeps the
// rows of its experts for these chunks; if they are sent again, only those of one layer and chunk,
// since no more are ever on their way. Gradients of experts are summed over microbatches in fp32,
// of one layer at a time, and of all layers of a stage where chunks follow each other through
// several.
struct ZebraRoom {
  double attention_fixed = 0, expert_fixed = 0;    // weights, gradients, states, one layer's room
  double attention_inputs = 0, expert_inputs = 0;  // one chunk's in all layers
  int32_t chunks = 1;                              // the most chunks at once
  double expert = 0;        // one expert's weights, gradients, states and part of the sums
  double held_experts = 0;  // on an expert device, in all the stage's layers
  DeviceParameters attention, experts;  // of a device of each kind

  double attention_bytes() const { return attention_fixed + chunks * attention_inputs; }
  double expert_bytes() const { return expert_fixed + chunks * expert_inputs; }
};

class ZebraMemory {
 public:
  // The arguments must outlive it.
  ZebraMemory(const ModelCost& cost, const NodePair& kinds, const ClusterDemand& demand)
      : cost_(cost), kinds_(kinds), demand_(demand) {}

  // [stage] the bounds of experts that can move. kDoesNotFit naming a stage and what it lacks.
  Result<std::vector<AsymBounds>> bounds(const ZebraLayout& layout,
                                         const StateChoice& state) const;
  // The room of each stage, and that of the fullest, if `offloaded` [layers] experts leave each
  // layer.
  std::vector<ZebraRoom> rooms(const ZebraLayout& layout, const StateChoice& state,
                               const std::vector<int32_t>& offloaded) const;
  struct Fullest {
    double bytes = 0;  // bytes of the fullest device of either kind
    DeviceParameters attention, experts;  // of the devices of each kind with most
  };
  Fullest fullest(const ZebraLayout& layout, const StateChoice& state,
                  const std::vector<int32_t>& offloaded) const;

 private:
  // `given`: how many experts each expert device leaves in all the stage's layers together.
  ZebraRoom room(const ZebraLayout& layout, const StateChoice& state, int32_t stage,
                 double given) const;
  int32_t attention_devices(const ZebraLayout& l) const {
    return kinds_.faster_devices / l.groups();
  }
  int32_t expert_devices(const ZebraLayout& l) const { return kinds_.slower_devices / l.groups(); }

  const ModelCost& cost_;
  const NodePair& kinds_;
  const ClusterDemand& demand_;
};

}  // namespace pagoda
