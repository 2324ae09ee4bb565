// Measures the network between processes for `pagoda bench network` and `bench machine`: how long a
// small message takes, and how many bytes a second go from one to another, both ways at once, in
// several flows, and from all to all.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "bench/race/report.h"
#include "bench/sheet/nodes.h"
#include "parallel/mpi_communicator.h"

namespace pagoda {

// [rank] the rates of cards as a cluster's sheets have them: those that are within a quarter of a
// slower one are as fast as that. Empty: all are.
std::vector<double> unequal_cards(std::span<const double> gb_s);

struct NetworkFound {
  double latency_us = 0;  // of a small message: half of a round trip; median of the pairs
  // The rate at which one sends while as much comes in, in messages of 16 MiB: the median of the
  // pairs; or, with more than two processes, the rate of all sending to all if that is less.
  double gb_s = 0;
  // unequal_cards(), where each of more than two processes has a machine of its own.
  std::vector<double> card_gb_s;
  // Figures "one way", "both ways" and "4 flows" (bytes each way) of each pair of neighbours in a
  // ring, one pair at a time; "one to all" (bytes each way) of each process by itself, where it has
  // a machine of its own; and "all to all" (bytes that one sends). NetworkRace says what their
  // roofs are.
  BenchReport report;
};

// Measures everything in `rounds` rounds and returns the same result everywhere. Stops between
// rounds when a signal asks any of the processes (stop_status). kHostMemory. REQUIRES: at least two
// processes, all call it; rounds and nodes (gather_nodes) are the same everywhere.
Result<NetworkFound> run_network_bench(MpiCommunicator& all, const std::vector<Node>& nodes,
                                       int rounds);

}  // namespace pagoda
