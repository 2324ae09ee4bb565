// Baselines that Aurora compares with (section 8.1), beside plan/exchange/sending_order.h: senders'
// orders at random, and the packing of Lina.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/exchange/sending_order.h"

namespace pagoda {

// RCS: every sender's order is random. The same seed gives the same orders. O(n^2).
SendingOrder random_sending_order(int devices, uint64_t seed);

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
