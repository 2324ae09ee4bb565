// The order of an all-to-all's transmissions that takes the least time (Aurora section 4.2 and
// appendix A): rounds, in each of which every device sends to one device at most and receives from
// one at most, so that nobody waits for a receiver. A transmission may be divided over several
// rounds (preemption). A run with parallel.exchange = rounds sends in this order
// (plan/rounds/exchange_order.h), and `pagoda plan --routing` says what it would save.
//
// The matrix is filled up with idle time until all rows and columns have the same sum. Such a
// matrix has a perfect matching of its positive entries, which is a round as long as its smallest
// entry, and the rest has equal sums again (Birkhoff 1946, von Neumann 1953). The paper takes any
// free token of a slot instead, which can get stuck.
//
// Rounds for n devices: at most n^2 - 2n + 2, since each round takes at least one dimension from
// the (n-1)^2 that the matrices of equal sums have. Pairs stay together from round to round as long
// as they have something to send. O(n^4) in all: n^2 entries are used up, and each costs one
// augmenting path of O(n^2).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/rounds/square_matrix.h"

namespace pagoda {

template <typename T>
struct Transmission {
  int sender = 0;
  int receiver = 0;
  T amount = T();  // above 0, at most the round's duration
};

template <typename T>
struct TransmissionRound {
  T duration = T();
  std::vector<Transmission<T>> transmissions;  // by sender; never empty
};

// Entries and durations in one unit: integers (bytes, tokens) where all devices have the same
// bandwidth, durations divided by it are seconds; or seconds of each transmission at its own rate
// (plan/rounds/traffic.h: link_seconds), amounts times that rate are bytes.
//
// The durations add up to line_bound() of the traffic and the amounts to its entries: exactly for
// integers; for reals, which are first rounded up to multiples of the bound's leading bit / 2^47,
// to n / 2^47 of the bound above them (n < 100,000: 1e-9), and never below.
// No rounds where nothing moves. kUsage as plan/rounds/traffic.h's check_traffic().
Result<std::vector<TransmissionRound<int64_t>>> transmission_order(
    const SquareMatrix<int64_t>& traffic);
Result<std::vector<TransmissionRound<double>>> transmission_order(
    const SquareMatrix<double>& traffic);

}  // namespace pagoda
