// The actions of a pass through several stages (plan/step/stages.h), each stage in its own order,
// joined to one list. The thread that issues them waits before the experts of a forward, until
// their routing is read back. So these stand in the list as they would follow each other if a chunk
// took one unit of time forward through a layer, with attention half of it, and two backward, and
// the head and sending none; everything else stands as early as what it waits for allows, so that
// no stage waits for the routing of another.
//
// With zebra (HeterMoE section 4.1: "ZP can be used in conjunction with PP, where we have ZP to
// split experts in each PP stage") a stage has two orders, of its devices that attend and of those
// with experts, which work side by side: a stage takes two chunks where it took one, so that both
// kinds have work, and goes through them in zebra's order (plan/step/zebra_actions.h).
// Breadth-first takes all chunks anyway. The last stage turns as the lags say, where it takes
// chunks forward and back at once. What a layer's experts gave joins the residual stream before it
// is read; where it leaves the stage, behind the attention of two more chunks. Pure.
#pragma once

#include "plan/step/action.h"
#include "plan/step/zebra_actions.h"

namespace pagoda {

// What one stage does, each kind of device in its order, kHead for a chunk's loss. Without zebra
// there is one kind, and kAttention of a chunk in a layer stands for all that it does there.
// Without backwards if the pass has none.
ZebraOrders stage_orders(const RunShape& shape, int stage, PassExtent extent);

// REQUIRES: shape.stages.several(); lags that do not wait for each other.
ActionList pipeline_actions(const RunShape& shape, PassExtent extent);

}  // namespace pagoda
