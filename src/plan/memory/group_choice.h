// Chooses how many row blocks of experts a device computes together: enough that an operator's
// launch fills a GPU, and that several devices end a wave together though its experts have unequal
// rows, but so few that most of the memory is left for pages. And for how many layers a device
// keeps weights that came from other ranks. Pure: the same budget gives the same choice. No choice
// changes a bit.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/machine/device_budget.h"
#include "plan/step/run_shape.h"

namespace pagoda {

struct GroupChoice {
  int64_t blocks = 1;
  // How much more device memory a step needs than with groups of one row block. With a smaller
  // budget the step falls back to those.
  int64_t bytes = 0;
};

// The run's own PlanOptions::group_blocks, if set. Otherwise one block where `together` is false,
// as on a CPU alone, and else a power of two up to `most`. A group takes at most an eighth of the
// memory beyond a step's least, or a third on one of several devices, which wait for one another
// between groups; and a run that fits on the device without groups still does so with them. What
// holds for one device holds for all. With several devices a layer has some groups on each, since
// the rows of one travel while others are computed; a forward pass alone with too few rows for that
// has one, since each wave of groups takes as long as its rows are on their way. In zebra other
// chunks are computed meanwhile, and devices that attend turn from attention to their experts once
// for each chunk: there a chunk's experts are as few groups as `most` allows, or twice as many,
// four times and so on, which are as large as each other. fixed_bytes(blocks, device): workspace of
// the device. The group_blocks of `shape` are ignored. Of several ranks each chooses for its own
// devices, whose budgets these are; they then take the least of what they chose.
GroupChoice choose_group(RunShape shape, bool together, const DeviceBudget& budget, int64_t most,
                         const std::function<int64_t(int64_t blocks, int device)>& fixed_bytes);

// RunShape::guest_layers: as many as a third of the memory beyond a step's least has room for on
// each device that attends, but two at least, or all; else 0. A run that fits on the device still
// does so. With Sharing::kAuto 0 where rows have fewer bytes than weights if routing is even, as
// there are few guests then. Several ranks take the least of what they chose.
// fixed_bytes(device): workspace of the device. The guest_layers of `shape` are ignored.
int64_t choose_guest_layers(RunShape shape, const DeviceBudget& budget,
                            const std::function<int64_t(int device)>& fixed_bytes);
// [device of the rank] what guest_layers take beyond the memory of a step without them; may be
// below 0.
std::vector<int64_t> guest_layer_bytes(const RunShape& shape);

}  // namespace pagoda
