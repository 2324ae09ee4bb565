// Nodes of devices, each with a card for its own node and one for the others: what exchanges that
// are executed and simulated go over.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/rounds/exchange_order.h"

namespace pagoda {

struct CardNetwork {
  int nodes = 4, each = 2;
  double within_s = 10e-6, between_s = 50e-6;  // latencies
  double within_bytes_per_s = 250e6, between_bytes_per_s = 50e6;

  int devices() const { return nodes * each; }
  bool same_node(int a, int b) const { return a / each == b / each; }
  double seconds(int from, int to, int64_t bytes) const {
    const bool within = same_node(from, to);
    return (within ? within_s : between_s) +
           static_cast<double>(bytes) / (within ? within_bytes_per_s : between_bytes_per_s);
  }
  ExchangeNodes exchange_nodes() const {
    std::vector<int> node;
    for (int d = 0; d < devices(); ++d) node.push_back(d / each);
    return ExchangeNodes(std::move(node));
  }
};

}  // namespace pagoda
