// Measures the network between processes for `pagoda bench machine`: how long a small message
// takes, and how many bytes a second go from one to another, both ways at once, and from all to
// all.
#pragma once

#include "base/status.h"
#include "bench/race/report.h"
#include "bench/sheet/nodes.h"
#include "parallel/communicator.h"

namespace pagoda {

struct NetworkFound {
  double latency_us = 0;  // of a small message: half of a round trip; median of the pairs
  // The rate at which one sends while as much comes in, in messages of 16 MiB: the median of the
  // pairs; or, with more than two processes, the rate of all sending to all if that is less.
  double gb_s = 0;
  // Figures "one way", "both ways" (bytes each way) of each pair of neighbours in a ring, one pair
  // at a time, and "all to all" (bytes that one sends) of more than two. The roof beside them, in
  // the same round: memcpy of the same bytes on one thread of each sender if both are on one
  // machine or a link does not report its speed; else the slower of their links.
  BenchReport report;
};

// Measures everything in `rounds` rounds and returns the same result everywhere. Stops between
// rounds when a signal asks any of the processes (stop_status). kHostMemory. REQUIRES: at least two
// processes, all call it; rounds and nodes (gather_nodes) are the same everywhere.
Result<NetworkFound> run_network_bench(Communicator& all, const std::vector<Node>& nodes,
                                       int rounds);

}  // namespace pagoda
