// HEXA-MoE's sharing of experts over devices of two kinds (sections 3.3 and 3.4,
// plan/mesh/data_model_centric.h): every device attends to a share of the sequences, by its speed.
// Data-centric: it also computes their experts, with weights that pass through it a layer at a
// time, the next layer's while one works. Model-centric: it computes its share of each expert's
// hidden dimension, by its speed with experts, for all rows. Both are simulated. Planned only:
// `pagoda plan` simulates it, and no run executes it yet. Pure.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "plan/search/node_pair.h"

namespace pagoda {

// The device of this kind with the largest share.
struct KindShare {
  int64_t sequences = 0;  // sequences of all that it attends to
  int64_t hidden = 0;     // columns of each expert that rest on it, and that it computes if
                          // model-centric
};

struct SharedStep {
  ExpertSharing sharing = ExpertSharing::kDataCentric;
  KindShare faster, slower;
  TimedStreams streams;

  double step_s() const { return streams.times.makespan_s; }
};

// kUsage: kRows, which is another strategy; the errors of shares_by_speed. O(layers).
Result<SharedStep> shared_step(const ModelShape& model, const ClusterSheet& cluster,
                               const NodePair& kinds, const ClusterDemand& demand,
                               ExpertSharing sharing);

// The memory of its devices: kept inputs of all layers for its sequences, room for one layer, and,
// data-centric, room for weights of two layers and gradients of one, or, model-centric, room for
// the rows of all.
NodePairBytes shared_bytes(const ModelShape& model, const ModelCost& cost,
                           const ClusterDemand& demand, const SharedStep& step,
                           const StateChoice& state);

}  // namespace pagoda
