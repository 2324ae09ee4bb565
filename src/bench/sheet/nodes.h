// Where the processes of a communicator run.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "hardware/network_link.h"
#include "parallel/communicator.h"

namespace pagoda {

struct Node {
  std::string host;     // the machine's name, for people
  std::string machine;  // equal for processes that run on one machine, whatever it is called there
  NetworkLink link;
};

// Returns the node of each rank; the same result everywhere.
Result<std::vector<Node>> gather_nodes(Communicator& all);

// The first rank on the machine of `rank`: the one that speaks for it.
int first_on_machine(const std::vector<Node>& nodes, int rank);

}  // namespace pagoda
