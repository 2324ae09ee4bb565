// Chooses pairs of experts that share a device. For two models on equal devices, one expert of each
// a device (Aurora section 6.2), the pairs with the least traffic of the busiest device also make
// the shortest inference (Theorem 6.1). Pure.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "plan/rounds/square_matrix.h"

namespace pagoda {

// The bytes or tokens that the device of one expert sends and receives in an all-to-all.
struct ExpertTraffic {
  double sent = 0;
  double received = 0;
};

// [expert] for a matrix that passes check_traffic() (plan/rounds/traffic.h). O(n^2).
std::vector<ExpertTraffic> expert_traffic(const SquareMatrix<double>& traffic);

struct Colocation {
  std::vector<int> b_of_a;  // [expert of model a] the expert of model b on its device
  double busiest = 0;       // the most that one device sends or receives for both models
};

// Theorem 6.2, for experts that receive as much as they send: pairs model a's in ascending order
// with model b's in descending order. No pairing has a smaller `busiest`. O(n log(n)).
Result<Colocation> colocate_sorted(std::span<const double> a, std::span<const double> b);

// colocate_sorted() if every expert of both models receives as much as it sends. Otherwise, since
// pairs of numbers have no order, bottleneck_matching() with the larger of (sent by both, received
// by both) as weight. In both cases no pairing has a smaller `busiest`. kUsage, as in
// colocate_sorted(), without experts, for unequal counts and for invalid amounts.
Result<Colocation> colocate(std::span<const ExpertTraffic> a, std::span<const ExpertTraffic> b);

}  // namespace pagoda
