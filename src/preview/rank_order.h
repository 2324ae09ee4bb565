// Orders a cluster's nodes as ranks: devices of neighbouring ranks share a stage, and the first
// ones attend in zebra. So nodes under one switch follow each other, and the faster at attention
// come first, in a switch and among switches. What nodes of different switches do to each other on
// the links between these is not simulated. Pure.
#pragma once

#include <string>
#include <vector>

#include "plan/machine/machine_sheet.h"

namespace pagoda {

// [rank] its node in the sheet; among equals the sheet's order stays. REQUIRES: cluster.check().
std::vector<size_t> rank_order(const ClusterSheet& cluster);

// The sheet with nodes, their files and hosts in that order. A host without a name is "node2", by
// its place in the sheet, from 0.
ClusterSheet in_rank_order(const ClusterSheet& cluster);

// The lines of mpirun's --hostfile for what in_rank_order() returns, one process a node.
std::vector<std::string> hostfile(const ClusterSheet& cluster);

}  // namespace pagoda
