// The time of a layer's forward and backward on one device, from the work of their pieces
// (plan/machine/work_cost.h): for meshes and for two kinds of nodes, whose steps are simulated by
// passes through layers and not task by task. Tokens are assumed to choose all experts equally
// often. Pure.
#pragma once

#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_cost.h"
#include "plan/machine/work_cost.h"

namespace pagoda {

// Seconds of the forward, and of the backward with what it computes again.
struct PassSeconds {
  double forward_s = 0;
  double backward_s = 0;

  double both_s() const { return forward_s + backward_s; }
};
inline PassSeconds operator+(const PassSeconds& a, const PassSeconds& b) {
  return {a.forward_s + b.forward_s, a.backward_s + b.backward_s};
}
inline PassSeconds operator*(const PassSeconds& pass, double times) {
  return {pass.forward_s * times, pass.backward_s * times};
}
inline PassSeconds operator/(const PassSeconds& pass, double parts) {
  return {pass.forward_s / parts, pass.backward_s / parts};
}

// The part of a layer that every token visits.
struct TokenPass {
  PassSeconds token;  // of each token
  PassSeconds once;   // of a microbatch, whatever its tokens: weights that are read, launches

  PassSeconds seconds(double tokens) const { return token * tokens + once; }
};

// Rows of experts on a device, equally many for each expert, and the groups in which a trainer
// computes them: of at most 16 blocks of 256 rows on a GPU, and of one block on the CPU
// (plan/step/expert_blocks.h).
struct GroupedRows {
  double rows = 0;
  double groups = 0;    // groups of one expert's blocks, or of several experts'
  double readings = 0;  // readings of an expert's weights: one for each of its groups
  // Copies of rows to groups and back. An expert's rows are seldom whole groups, so that they take
  // one more than they fill.
  double copies = 0;
};

// The part of a layer that is its experts'.
struct RowPass {
  PassSeconds row;      // of each row
  PassSeconds group;    // of each group: launches
  PassSeconds reading;  // of each reading of an expert's weights
  PassSeconds copy;     // of each copy: launches

  PassSeconds seconds(const GroupedRows& of) const {
    return row * of.rows + group * of.groups + reading * of.readings + copy * of.copies;
  }
};

class PassClock {
 public:
  // REQUIRES: sheet.check(), 0 < sequence_len. The arguments must outlive it.
  PassClock(const MachineSheet& sheet, const ModelCost& model, int64_t sequence_len);

  // `again`: nothing was saved but the layer's input, and the backward computes the rest again.
  //
  // Everything but experts: attention, the MLP of a dense layer or router and shared experts, and
  // the residual.
  TokenPass tokens(const LayerCost& layer, bool again) const;
  // What puts rows in the order of experts, and sums their results.
  RowPass copies(const LayerCost& layer) const;
  // `columns`: the share of each expert's hidden dimension that is computed here.
  RowPass experts(const LayerCost& layer, bool again, double columns = 1) const;
  // The groups of `rows` rows of `experts` experts.
  GroupedRows grouped(double rows, double experts) const;

  // The embedding, and the head with logits, loss and their backward, which come together between
  // forward and backward. A model without tables takes none.
  TokenPass embedding() const;
  TokenPass head() const;  // `forward_s` has both

 private:
  Cost cost(const Work& work) const { return clock_.cost(work, 1, 1); }
  TokenPass pass(const Work& forward, const Work& backward) const;

  const MachineSheet& sheet_;
  const ModelCost& model_;
  WorkSizes sizes_;
  WorkClock clock_;
};

}  // namespace pagoda
