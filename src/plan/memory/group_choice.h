// How many row blocks of experts a GPU computes together: enough that an operator's launch fills
// the card, as long as what they use at once leaves the rest of its memory to pages. Pure: the same
// budget, the same choice; and no choice changes a bit.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/step/run_shape.h"

namespace pagoda {

struct GroupChoice {
  int64_t blocks = 1;
  // Of a device, that a step needs at least beyond what it would with groups of one row block,
  // which it falls back to where the budget is less.
  int64_t bytes = 0;
};

// What the run asks for (PlanOptions::group_blocks); else one on the CPU, and on a GPU a power of
// two up to `most`: what is beyond the least memory of a step gives a group at most an eighth, and
// a run that fits on the device without groups does so with them.
// fixed_bytes(blocks): workspace of the device. `shape`: whatever its group_blocks.
GroupChoice choose_group(RunShape shape, bool on_gpu, int64_t device_bytes, int64_t most,
                         const std::function<int64_t(int64_t blocks)>& fixed_bytes);

}  // namespace pagoda
