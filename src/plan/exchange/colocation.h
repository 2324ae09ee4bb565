// Pairs of experts that share a device: of two models on equal devices (Aurora section 6.2), where
// the pairs that make the least of what the busiest device sends or receives also make the shortest
// inference (Theorem 6.1). One expert of each model a device.
// Planned only: it is tested, and neither a run nor `pagoda plan` uses it yet.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "plan/exchange/square_matrix.h"

namespace pagoda {

// What the device of one expert sends and receives in an all-to-all: bytes or tokens.
struct ExpertTraffic {
  double sent = 0;
  double received = 0;
};

// [expert] of a matrix as in plan/exchange/traffic.h, whose check_traffic() it passes. O(n^2).
std::vector<ExpertTraffic> expert_traffic(const SquareMatrix<double>& traffic);

struct Colocation {
  std::vector<int> b_of_a;  // [expert of model a] the expert of model b on its device
  double busiest = 0;       // the most that one device sends or receives for both
};

// Theorem 6.2, for experts that receive as much as they send: model a's in ascending order with
// model b's in descending order. The least `busiest` of all pairings. O(n log(n)).
Result<Colocation> colocate_sorted(std::span<const double> a, std::span<const double> b);

// colocate_sorted() where every expert of both models receives what it sends; otherwise, since
// pairs of numbers have no order, the matching of bottleneck_matching() with the larger of
// (sent by both, received by both) as weight. The least `busiest` of all pairings either way.
// kUsage, as colocate_sorted(), without experts, for unequal counts and amounts that make no sense.
Result<Colocation> colocate(std::span<const ExpertTraffic> a, std::span<const ExpertTraffic> b);

}  // namespace pagoda
