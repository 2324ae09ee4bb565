// Chooses how many row blocks of experts a GPU computes together: enough that an operator's launch
// fills the card, but so few that most of its memory is left for pages. Pure: the same budget gives
// the same choice. No choice changes a bit.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/step/run_shape.h"

namespace pagoda {

struct GroupChoice {
  int64_t blocks = 1;
  // How much more device memory a step needs than with groups of one row block. With a smaller
  // budget the step falls back to those.
  int64_t bytes = 0;
};

// The run's own PlanOptions::group_blocks, if set. Otherwise one block on the CPU, and on a GPU a
// power of two up to `most`. A group takes at most an eighth of the memory beyond a step's least,
// and a run that fits on the device without groups still does so with them. fixed_bytes(blocks):
// workspace of the device. The group_blocks of `shape` are ignored.
GroupChoice choose_group(RunShape shape, bool on_gpu, int64_t device_bytes, int64_t most,
                         const std::function<int64_t(int64_t blocks)>& fixed_bytes);

}  // namespace pagoda
