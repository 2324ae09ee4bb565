// Merges measured nodes of one make into one sheet of a cluster, since no two measurements are
// equal.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/machine/machine_sheet.h"

namespace pagoda {

// For each node, the first node with the same processors, by name and number, and as fast a network
// card; it may be itself.
std::vector<size_t> first_equal(const std::vector<MachineSheet>& nodes);

// One sheet for equal nodes: it has the worst of each size and rate, because a step waits for the
// slowest node.
MachineSheet worst_of(const MachineSheet& one, const MachineSheet& other);

}  // namespace pagoda
