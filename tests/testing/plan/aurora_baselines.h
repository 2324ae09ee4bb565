// Baselines that Aurora compares with (section 8.1): all-to-alls without a common order, beside
// plan/exchange/transmission_order.h, and the packing of Lina. Without a common order every device
// sends to one device after the other in an order of its own, and a receiver that several send to
// at once shares its bandwidth among them (section 3, figure 4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/exchange/square_matrix.h"

namespace pagoda {

// [sender] the devices in the order in which it sends to them; itself and devices that it has
// nothing for are passed over.
using SendingOrder = std::vector<std::vector<int>>;

// SJF: the smallest transmission comes first, among equals the lower device. O(n^2 log(n)).
SendingOrder shortest_first(const SquareMatrix<double>& traffic);

// RCS: every sender's order is random. The same seed gives the same orders. O(n^2).
SendingOrder random_sending_order(int devices, uint64_t seed);

// Seconds until the last byte has arrived. A sender moves on when a transmission is complete. Rates
// are max-min fair: a receiver's senders get equal parts of its bandwidth, but none gets more than
// its own, and the others share the rest. The result is never below concurrent_bound_s(). O(n^3).
// kUsage for an invalid order, traffic or bandwidths.
Result<double> queued_seconds(const SquareMatrix<double>& traffic_bytes,
                              std::span<const double> bytes_per_s, const SendingOrder& order);

// The bound that Theorem 5.2 states, with the receiver's term over its own bandwidth: the largest
// of sent[i] / B_i and received[j] / B_j. At most line_bound(link_seconds()); where it is smaller,
// reaching it takes concurrent flows at one end. REQUIRES: link_seconds() of these is no refusal.
double concurrent_bound_s(const SquareMatrix<double>& traffic_bytes,
                          std::span<const double> bytes_per_s);

// Lina's packing: n experts of one model on n / 2 devices, the one with the largest load beside the
// one with the smallest, and so on: [expert] its device, 0 for the first pair. REQUIRES: an even
// number. O(n log(n)).
std::vector<int> lina_packing(std::span<const double> loads);

}  // namespace pagoda
