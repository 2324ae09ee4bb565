#include "preview/rank_order.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace pagoda {

std::vector<size_t> rank_order(const ClusterSheet& cluster) {
  const size_t nodes = cluster.nodes.size();
  const int64_t listed = cluster.cluster.nodes_per_switch;
  const size_t under_one = listed > 0 ? static_cast<size_t>(listed) : nodes;
  const auto speed = [&](size_t node) { return cluster.nodes[node].device.attention_tflops; };
  std::vector<double> fastest((nodes + under_one - 1) / under_one, 0);  // [switch]
  for (size_t n = 0; n < nodes; ++n) {
    double& of_switch = fastest[n / under_one];
    of_switch = std::max(of_switch, speed(n));
  }
  std::vector<size_t> order(nodes);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const size_t of_a = a / under_one, of_b = b / under_one;
    if (of_a == of_b) return speed(a) > speed(b);
    return fastest[of_a] != fastest[of_b] ? fastest[of_a] > fastest[of_b] : of_a < of_b;
  });
  return order;
}

ClusterSheet in_rank_order(const ClusterSheet& cluster) {
  ClusterSheet ordered = cluster;
  const std::vector<size_t> order = rank_order(cluster);
  const bool named = !cluster.cluster.hosts.empty();
  ordered.cluster.hosts.resize(order.size());
  for (size_t r = 0; r < order.size(); ++r) {
    ordered.nodes[r] = cluster.nodes[order[r]];
    if (r < cluster.cluster.nodes.size()) {
      ordered.cluster.nodes[r] = cluster.cluster.nodes[order[r]];
    }
    ordered.cluster.hosts[r] = named ? cluster.cluster.hosts[order[r]] : strf("node%zu", order[r]);
  }
  return ordered;
}

std::vector<std::string> hostfile(const ClusterSheet& cluster) {
  std::vector<std::string> lines;
  for (const std::string& host : cluster.cluster.hosts) lines.push_back(host + " slots=1");
  return lines;
}

}  // namespace pagoda
