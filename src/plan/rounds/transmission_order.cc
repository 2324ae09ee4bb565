#include "plan/rounds/transmission_order.h"

#include <algorithm>
#include <cmath>

#include "plan/rounds/bipartite_matching.h"
#include "plan/rounds/traffic.h"

namespace pagoda {
namespace {

using IntegerRound = TransmissionRound<int64_t>;

SquareMatrix<int64_t> without_diagonal(SquareMatrix<int64_t> traffic) {
  for (int i = 0; i < traffic.size(); ++i) traffic.at(i, i) = 0;
  return traffic;
}

// Adds idle time so that each row and column adds up to `bound`. It goes from the first row and
// column on and to few entries, since each entry costs a round.
SquareMatrix<int64_t> filled(SquareMatrix<int64_t> traffic, int64_t bound) {
  const int n = traffic.size();
  std::vector<int64_t> idle_sender = sent_by_device(traffic);
  std::vector<int64_t> idle_receiver = received_by_device(traffic);
  for (int64_t& idle : idle_sender) idle = bound - idle;
  for (int64_t& idle : idle_receiver) idle = bound - idle;
  for (int i = 0, j = 0; i < n && j < n;) {
    const int64_t idle = std::min(idle_sender[i], idle_receiver[j]);
    traffic.at(i, j) += idle;
    idle_sender[i] -= idle;
    idle_receiver[j] -= idle;
    if (idle_sender[i] == 0) {
      ++i;
    } else {
      ++j;
    }
  }
  return traffic;
}

class RoundByRound {
 public:
  explicit RoundByRound(const SquareMatrix<int64_t>& traffic)
      : traffic_(without_diagonal(traffic)), matching_(traffic.size()) {
    left_ = line_bound(traffic_);
    filled_ = filled(traffic_, left_);
    edges_ = SquareMatrix<uint8_t>(traffic_.size());
    for (int i = 0; i < traffic_.size(); ++i) {
      for (int j = 0; j < traffic_.size(); ++j) edges_.at(i, j) = filled_.at(i, j) > 0;
    }
  }

  std::vector<IntegerRound> rounds() {
    std::vector<IntegerRound> rounds;
    while (left_ > 0) {
      complete(edges_, matching_);
      CHECK(matching_.perfect(), "equal sums have a perfect matching");
      rounds.push_back(next_round());
      left_ -= rounds.back().duration;
    }
    return rounds;
  }

 private:
  IntegerRound next_round() {
    IntegerRound round{left_, {}};
    for (int i = 0; i < traffic_.size(); ++i) {
      round.duration = std::min(round.duration, filled_.at(i, matching_.column_of_row[i]));
    }
    for (int i = 0; i < traffic_.size(); ++i) spend(i, matching_.column_of_row[i], round);
    return round;
  }

  // Traffic goes before idle time.
  void spend(int sender, int receiver, IntegerRound& round) {
    const int64_t amount = std::min(traffic_.at(sender, receiver), round.duration);
    if (amount > 0) round.transmissions.push_back({sender, receiver, amount});
    traffic_.at(sender, receiver) -= amount;
    filled_.at(sender, receiver) -= round.duration;
    if (filled_.at(sender, receiver) > 0) return;
    edges_.at(sender, receiver) = 0;
    matching_.separate(sender);
  }

  SquareMatrix<int64_t> traffic_;  // the traffic that is left
  SquareMatrix<int64_t> filled_;   // the same with idle time: every line adds up to left_
  SquareMatrix<uint8_t> edges_;    // where filled_ is above 0
  BipartiteMatching matching_;
  int64_t left_ = 0;
};

}  // namespace

Result<std::vector<IntegerRound>> transmission_order(const SquareMatrix<int64_t>& traffic) {
  RETURN_IF_ERROR(check_traffic(traffic));
  return RoundByRound(traffic).rounds();
}

Result<std::vector<TransmissionRound<double>>> transmission_order(
    const SquareMatrix<double>& traffic) {
  RETURN_IF_ERROR(check_traffic(traffic));
  std::vector<TransmissionRound<double>> rounds;
  int exponent = 0;
  std::frexp(line_bound(traffic), &exponent);
  // The bound has 48 bits: sums of integers stay exact as doubles too.
  const int shift = 48 - exponent;
  SquareMatrix<int64_t> units(traffic.size());
  for (int i = 0; i < traffic.size(); ++i) {
    for (int j = 0; j < traffic.size(); ++j) {
      if (i == j) continue;
      units.at(i, j) = static_cast<int64_t>(std::ceil(std::ldexp(traffic.at(i, j), shift)));
    }
  }
  for (const IntegerRound& round : RoundByRound(units).rounds()) {
    auto& last = rounds.emplace_back();
    last.duration = std::ldexp(static_cast<double>(round.duration), -shift);
    for (const auto& piece : round.transmissions) {
      const double amount = std::ldexp(static_cast<double>(piece.amount), -shift);
      last.transmissions.push_back({piece.sender, piece.receiver, amount});
    }
  }
  return rounds;
}

}  // namespace pagoda
