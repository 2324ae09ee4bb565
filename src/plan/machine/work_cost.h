// The one place where the work of a step gets its time: the operations and bytes of each piece of a
// layer, of the tables and of updates, by shape, and their time on a device, by the machine's
// sheet. Pure.
//
// The backward reads what the forward saved. What was not saved it computes again: attention's
// forward and the first product of an MLP (its gate and up). So an expert's backward takes 12 d f
// operations for a row, or 16 d f with its gate and up again, and attention's takes twice the
// forward's projections and 2.5 times its scores, or three times and 3.5 times.
#pragma once

#include <cstdint>

#include "plan/machine/machine_profile.h"
#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_cost.h"

namespace pagoda {

// A piece of work on one device: operations (a multiply-add is two) and bytes of one unit (a token,
// a row of an expert, an element), and the weights beside them.
struct Work {
  double flops = 0;         // operations of products
  double score_flops = 0;   // operations of attention's scores and weighted values
  double bytes = 0;         // bytes that norms, gathers and sums read and write
  double weight_bytes = 0;  // weights read beside the products, whatever the units
};

// The sizes beside a layer's own on which its work depends. Updates depend on `weight_bytes` alone.
struct WorkSizes {
  double hidden_size = 0;             // d
  double sequence_len = 0;            // s, tokens that see each other
  double weight_bytes = kValueBytes;  // bytes of a weight
};

// The work of a layer. Dense layers have `dense_mlp`; layers with experts have the pieces below it.
struct LayerWork {
  // What a token takes.
  Work attention, attention_backward;
  Work dense_mlp, dense_mlp_backward;
  Work route, route_replay, route_backward;  // router and shared experts; replay: the router alone
  Work residual;
  // What a token's choice of an expert takes.
  Work index;
  // What a row takes, a token and one of its experts. The backward of combine is the same work.
  Work dispatch, dispatch_backward;
  // The weight_bytes of the backward include the fp32 sum of its gradient, which it writes.
  Work expert, expert_backward;
  Work combine;
  Work added;  // by experts and their backward beside the above, if they add what they give to sums
};

// `again`: the share of the layer that was not saved, 0 to 1.
LayerWork layer_work(const LayerCost& layer, const WorkSizes& sizes, double again);

// The work of embedding and head, of a token; `parameters`: of the table, vocabulary x d.
struct TableWork {
  Work embed, embed_backward;
  Work loss;  // logits and loss
  Work head;  // logits, loss and their backward
};
TableWork table_work(double parameters, const WorkSizes& sizes);

// The work of an element's gradient, from its fp32 sum to the type in which it waits.
Work gradient_work(const WorkSizes& sizes);
// The work of an element that is added from one fp32 sum of gradients to another.
Work sums_work();
// The bytes that an element's update reads and writes: gradient, weight and state.
// `state_bytes`: of an element.
double update_bytes(const WorkSizes& sizes, double state_bytes);

// The times of work on one device of a machine. A CPU's work takes all its cores.
class WorkClock {
 public:
  // REQUIRES: sheet.check(), 0 < sequence_len. The sheet must outlive it.
  WorkClock(const MachineSheet& sheet, double sequence_len)
      : sheet_(sheet), sequence_len_(sequence_len) {}

  // The cost of a unit, and of `together` readings of the weights and `launches` launches, whatever
  // the units.
  Cost cost(const Work& work, double together, double launches) const;
  // The cost of updates that move so many bytes for an element: on the device, in `launches`
  // launches, or by the cores of the host.
  Cost device_updates(double bytes, double launches) const;
  Cost host_updates(double bytes) const;
  // The cost of a byte copied from a device to the host, or back.
  Cost copy() const;
  // The cost of a byte over a link. REQUIRES: 0 < gb_s.
  static Cost link(double gb_s, double latency_us);

 private:
  double score_s(double flops) const;
  double cores() const { return sheet_.gpu() ? 0 : sheet_.host.cores; }

  const MachineSheet& sheet_;
  double sequence_len_;
};

}  // namespace pagoda
