// The actions of a pass through several stages (plan/step/stages.h), each stage in its own order,
// joined to one list. The thread that issues them waits before the experts of a forward, until
// their routing is read back. So these stand in the list as they would follow each other if a chunk
// took one unit of time forward through a layer, with attention half of it, and two backward, and
// the head and sending none; everything else stands as early as what it waits for allows, so that
// no stage waits for the routing of another. Pure.
#pragma once

#include "plan/step/action.h"

namespace pagoda {

// What one stage does, in its order: kAttention of a chunk in a layer stands for all that it does
// there, kHead for the chunk's loss. Without backwards if the pass has none.
ActionList stage_actions(const RunShape& shape, int stage, PassExtent extent);

// REQUIRES: shape.stages.several().
ActionList pipeline_actions(const RunShape& shape, PassExtent extent);

}  // namespace pagoda
