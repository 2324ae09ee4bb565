// The all-to-all of rows among the devices of a cluster, flat or in three phases (HALO, Piper
// section V): the messages of each device, and their cost on a network of two or three levels, as
// closed forms. What a run sends is in plan/rounds/exchange_order.h. Pure.
//
// Every device has one row (of any size) for every other. In a flat exchange each row is a message
// of its own, and (nodes - 1) R messages leave the device's node of R devices. In three phases:
//   1. every row for a device of the same node goes straight there;
//   2. all rows for the devices of another node go in one message to the device there that has the
//      same place in its node, so that each uses its own network card: nodes - 1 messages;
//   3. the rows that came are passed on inside the node to their devices.
// Phase 3 waits for 2; phase 1 waits for nothing and runs beside 2, on other links (13). As many
// bytes leave the node as in a flat exchange, in R times fewer and larger messages; phase 3 is the
// price.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "tests/testing/plan/cluster.h"

namespace pagoda {

enum class ExchangeKind : uint8_t { kFlat, kHierarchical };

struct ExchangeMessage {
  int phase = 1;     // 1 to 3; in a flat exchange 1 in the node and 2 between nodes
  int64_t to = 0;    // device
  int64_t rows = 0;  // rows in it, in the order of source, then destination
};

// The messages of one device, in an order in which no device receives from two at once if all
// messages take equally long. REQUIRES: counts of the cluster that check_cluster lets pass, 0 <=
// device < devices. O(devices).
std::vector<ExchangeMessage> exchange_messages(const ClusterProfile& cluster, ExchangeKind kind,
                                               int64_t device);

// The cost for the device that takes longest.
struct ExchangeCost {
  int64_t messages_between_nodes = 0;  // messages that it sends
  double bytes_between_nodes = 0;
  double inside_s = 0;   // phase 1
  double between_s = 0;  // phase 2
  double onward_s = 0;   // phase 3
  double total_s = 0;    // max(inside, between) + onward
};

// A message takes its link's fixed_s, and unit_s for each byte; a device sends one after the other.
// kUsage: row_bytes not above zero, the errors of check_cluster. O(nodes * devices).
Result<ExchangeCost> exchange_cost(const ClusterProfile& cluster, ExchangeKind kind,
                                   double row_bytes);

// The cheaper of the two kinds; flat when equal.
struct ExchangeChoice {
  ExchangeKind kind = ExchangeKind::kFlat;
  ExchangeCost cost;
};
Result<ExchangeChoice> cheaper_exchange(const ClusterProfile& cluster, double row_bytes);

}  // namespace pagoda
