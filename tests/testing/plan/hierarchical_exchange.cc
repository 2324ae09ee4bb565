#include "tests/testing/plan/hierarchical_exchange.h"

#include <algorithm>
#include <array>

#include "plan/refusals.h"

namespace pagoda {
namespace {

// Messages to the other devices of the node.
void add_in_node(const ClusterProfile& cluster, int64_t device, int phase, int64_t rows,
                 std::vector<ExchangeMessage>& messages) {
  const int64_t per_node = cluster.devices_per_node;
  const int64_t first = cluster.node(device) * per_node;
  for (int64_t step = 1; step < per_node; ++step) {
    messages.push_back({phase, first + (device - first + step) % per_node, rows});
  }
}

ExchangeCost device_cost(const ClusterProfile& cluster, ExchangeKind kind, double row_bytes,
                         int64_t device) {
  ExchangeCost cost;
  std::array<double, 4> phase_s{};
  for (const ExchangeMessage& message : exchange_messages(cluster, kind, device)) {
    const double bytes = static_cast<double>(message.rows) * row_bytes;
    phase_s[static_cast<size_t>(message.phase)] += cluster.link(device, message.to).seconds(bytes);
    if (message.phase != 2) continue;
    ++cost.messages_between_nodes;
    cost.bytes_between_nodes += bytes;
  }
  cost.inside_s = phase_s[1];
  cost.between_s = phase_s[2];
  cost.onward_s = phase_s[3];
  cost.total_s = std::max(cost.inside_s, cost.between_s) + cost.onward_s;
  return cost;
}

}  // namespace

std::vector<ExchangeMessage> exchange_messages(const ClusterProfile& cluster, ExchangeKind kind,
                                               int64_t device) {
  CHECK(device >= 0 && device < cluster.devices());
  const int64_t per_node = cluster.devices_per_node;
  const bool flat = kind == ExchangeKind::kFlat;
  std::vector<ExchangeMessage> messages;
  add_in_node(cluster, device, 1, 1, messages);
  for (int64_t step = 1; step < cluster.nodes; ++step) {
    const int64_t node = (cluster.node(device) + step) % cluster.nodes;
    for (int64_t turn = 0; turn < (flat ? per_node : 1); ++turn) {
      const int64_t place = (device + turn) % per_node;
      messages.push_back({2, node * per_node + place, flat ? 1 : per_node});
    }
  }
  if (!flat && cluster.nodes > 1) add_in_node(cluster, device, 3, cluster.nodes - 1, messages);
  return messages;
}

Result<ExchangeCost> exchange_cost(const ClusterProfile& cluster, ExchangeKind kind,
                                   double row_bytes) {
  RETURN_IF_ERROR(check_cluster(cluster));
  RETURN_IF_ERROR(check_rate("row_bytes", row_bytes));
  ExchangeCost longest;
  // Devices of a node have the same links.
  for (int64_t node = 0; node < cluster.nodes; ++node) {
    const ExchangeCost cost =
        device_cost(cluster, kind, row_bytes, node * cluster.devices_per_node);
    if (node == 0 || cost.total_s > longest.total_s) longest = cost;
  }
  return longest;
}

Result<ExchangeChoice> cheaper_exchange(const ClusterProfile& cluster, double row_bytes) {
  ASSIGN_OR_RETURN(const ExchangeCost flat, exchange_cost(cluster, ExchangeKind::kFlat, row_bytes));
  ASSIGN_OR_RETURN(const ExchangeCost hierarchical,
                   exchange_cost(cluster, ExchangeKind::kHierarchical, row_bytes));
  if (hierarchical.total_s < flat.total_s) {
    return ExchangeChoice{ExchangeKind::kHierarchical, hierarchical};
  }
  return ExchangeChoice{ExchangeKind::kFlat, flat};
}

}  // namespace pagoda
