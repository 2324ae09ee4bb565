// All-to-alls without a common order: every device sends to one device after the other in an order
// of its own, and a receiver that several send to at once shares its bandwidth among them (Aurora,
// section 3, figure 4). What the rounds of plan/rounds/transmission_order.h are compared with
// (section 8.1). Pure.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "plan/rounds/square_matrix.h"

namespace pagoda {

// [sender] the devices in the order in which it sends to them; itself and devices that it has
// nothing for are passed over.
using SendingOrder = std::vector<std::vector<int>>;

// SJF: the smallest transmission comes first, among equals the lower device. O(n^2 log(n)).
SendingOrder shortest_first(const SquareMatrix<double>& traffic);

// Seconds until the last byte has arrived. A sender moves on when a transmission is complete. Rates
// are max-min fair: a receiver's senders get equal parts of its bandwidth, but none gets more than
// its own, and the others share the rest. The result is at least the largest of what a device sends
// or receives over its bandwidth (Theorem 5.2). O(n^3). kUsage for an invalid order, traffic or
// bandwidths.
Result<double> queued_seconds(const SquareMatrix<double>& traffic_bytes,
                              std::span<const double> bytes_per_s, const SendingOrder& order);

}  // namespace pagoda
