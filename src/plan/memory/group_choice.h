// Chooses how many row blocks of experts a device computes together: enough that an operator's
// launch fills a GPU, and that several devices end a wave together though its experts have unequal
// rows, but so few that most of the memory is left for pages. And how many waves are in flight, and
// for how many layers a device keeps weights that came from other ranks. Pure: the same budget
// gives the same choice. No choice changes a bit.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/machine/device_budget.h"
#include "plan/step/run_shape.h"

namespace pagoda {

struct GroupChoice {
  int64_t blocks = 1;
  int64_t waves = kLeastWaves;  // RunShape::waves_in_flight
};

// Workspace of a device with such groups.
using GroupWorkspace = std::function<int64_t(int64_t blocks, int device)>;

// The run's own PlanOptions::group_blocks, if set. Otherwise one block where `together` is false,
// as on a CPU alone, and else a power of two up to `most`. A group takes at most an eighth of the
// memory beyond a step's least, or a third on one of several devices, which wait for one another
// between groups; and a device that has room for all of its pages without groups still does with
// them. What holds for one device holds for all. With several devices a layer has some groups on
// each, since the rows of one travel while others are computed; a forward pass alone with too few
// rows for that has one, since each wave of groups takes as long as its rows are on their way. In
// zebra other chunks are computed meanwhile, and devices that attend turn from attention to their
// experts once for each chunk: there a chunk's experts are as few groups as `most` allows, or twice
// as many, four times and so on, which are as large as each other. Of several ranks each chooses
// for its own devices, whose budgets these are; they then take the least of what they chose.
//
// Waves in flight: PlanOptions::waves_in_flight, if set. Otherwise kMostWaves, a half of them and
// so on, as long as what they take beyond the fewest is at most an eighth of the memory beyond a
// step's least, drives no pages off a device that has room for all of its own, and is no more than
// a layer may have. They may leave no room for rows that are read in place, which are worth less: a
// simulated step with eight waves of copied rows takes up to 11 % less than with two of rows in
// place where routing is uneven, and up to 5 % more where it is even. The group_blocks and
// waves_in_flight of `shape` are ignored.
GroupChoice choose_group(RunShape shape, bool together, const DeviceBudget& budget, int64_t most,
                         const GroupWorkspace& fixed_bytes);
// [device of the rank] how much more memory a step needs with the groups and waves of the shape,
// which all ranks have, than with those that the run falls back to with the smallest budget. The
// guest_layers of `shape` are ignored.
std::vector<int64_t> group_bytes(RunShape shape, const GroupWorkspace& fixed_bytes);

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
