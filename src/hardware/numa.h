// Finds the cores that share a memory controller (a node), and keeps threads on a node. A machine
// with several nodes serves a thread faster from its own node's memory, and a thread that the
// system moves to another node loses its caches. On one node there is nothing to choose.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {

struct NumaNode {
  std::vector<int> cores;  // cores that this process may run on, ascending; at least one
};

// The cores that the calling thread may run on, ascending; none if the system does not say.
std::vector<int> own_cores();

// The calling thread's cores by node, in the order of the nodes' numbers. What cannot be read
// counts as one node. `root` is as /sys/devices/system/node.
std::vector<NumaNode> numa_nodes(const std::string& root = "/sys/devices/system/node");
// The same for these cores, in ascending order.
std::vector<NumaNode> numa_nodes(const std::string& root, const std::vector<int>& cores);

// The node of thread `thread` of `threads`: runs of threads as long as the nodes have cores.
// REQUIRES: nodes is not empty.
size_t node_of_thread(int thread, int threads, const std::vector<NumaNode>& nodes);

// Keeps the calling thread, and threads that it starts, on the node's cores. kUnavailable if the
// system refuses that: they stay where they are.
Status stay_on(const NumaNode& node);

}  // namespace pagoda
