// Measured nodes as a cluster's sheet: no two measurements are equal, nodes of one make are.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/machine/machine_sheet.h"

namespace pagoda {

// For each node the first that has its processors, by name and number; itself where it is the
// first.
std::vector<size_t> first_equal(const std::vector<MachineSheet>& nodes);

// One sheet for nodes that are alike: of each size and rate the worst that one of them has, because
// a step waits for the slowest.
MachineSheet worst_of(const MachineSheet& one, const MachineSheet& other);

}  // namespace pagoda
