// All-to-alls without a common order, to compare with plan/exchange/transmission_order.h: every
// device sends to one device after the other in an order of its own, and a receiver that several
// send to at once shares its bandwidth among them (Aurora section 3, figure 4, and the baselines
// SJF and RCS of section 8.1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/exchange/square_matrix.h"

namespace pagoda {

// [sender] the devices in the order it sends to them; itself and those it has nothing for are
// passed over.
using SendingOrder = std::vector<std::vector<int>>;

// SJF: the smallest transmission first. Equal ones: the lower device. O(n^2 log(n)).
SendingOrder shortest_first(const SquareMatrix<double>& traffic);

// RCS: every sender's order drawn by itself. The same seed draws the same. O(n^2).
SendingOrder random_sending_order(int devices, uint64_t seed);

// Seconds until the last byte has arrived. A sender moves on when a transmission is complete. Rates
// are max-min fair: a receiver's senders get equal parts of its bandwidth, but none more than its
// own, and what one cannot use is the others'. Never below concurrent_bound_s(). O(n^3).
// kUsage for traffic, bandwidths or an order that make no sense.
Result<double> queued_seconds(const SquareMatrix<double>& traffic_bytes,
                              std::span<const double> bytes_per_s, const SendingOrder& order);

}  // namespace pagoda
