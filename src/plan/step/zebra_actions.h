// The actions of a pass in zebra's order (HeterMoE section 4.1): attention goes from chunk to chunk
// and from layer to layer, and experts follow, each kind of device in the order of Theorem 1 with
// lags. So devices that attend work at one chunk while the others compute experts of another.
//
// Within a layer chunk follows chunk, and in the last layer the two kinds turn from the forward to
// the backward as the lags say. Experts stand in the list as early as they can, so that gradients
// do not wait for attention of other chunks; but in the forward they stand behind the attention of
// the next chunk, since their routing must be read back first. What they gave joins the residual
// stream right before it is read. Pure.
#pragma once

#include "plan/step/action.h"

namespace pagoda {

// What each kind of device does, in its order.
struct ZebraOrders {
  ActionList attention;  // kAttention, kHead, and kResidual of what leaves a stage
  ActionList experts;    // kExperts
};
ZebraOrders zebra_orders(const RunShape& shape, PassExtent extent);

// Some chunks of a pass through some layers: forward, backward, or forward and then back. Where it
// is both, and has the model's last layer, the kinds turn there as the lags say; elsewhere all of
// its chunks go forward first.
struct ZebraPart {
  std::vector<int64_t> layers = {};  // ascending
  int64_t first_chunk = 0, chunks = 0;
  bool forward = true, backward = false;
  bool head = false;  // behind the model's last layer
};
// Appends what each kind of device does of a part. Without zebra the lags are none, and attention
// stands for all that a chunk does in a layer, so that there are no orders of experts.
void add_zebra_part(const RunShape& shape, const ZebraPart& part, ZebraOrders& orders);

// The list of both kinds' actions, each kind in its own order, with what comes before, between and
// behind them. REQUIRES: the actions of zebra_orders(), which do not wait for each other.
ActionList join_orders(const RunShape& shape, const ZebraOrders& orders, PassExtent extent);

// REQUIRES: the lags do not wait for each other.
ActionList zebra_actions(const RunShape& shape, PassExtent extent);

// Whether the last layer's experts of a chunk would stay for attention that stays for them. They
// cannot in a last layer without experts, which turns by itself.
bool lags_wait_for_each_other(const Lags& lags, bool last_is_moe, int64_t chunks);

}  // namespace pagoda
