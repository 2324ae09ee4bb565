#include "plan/rounds/card_lanes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "plan/rounds/traffic.h"

namespace pagoda {
namespace {

// Lanes beside each other lower the bound to this part of it, at most.
constexpr double kWorthwhile = 0.95;

// Fills a device's lanes one after the other, so that each has equally much.
class LaneFiller {
 public:
  LaneFiller(int first, int count, int64_t all)
      : lane_(first), each_(div_ceil(all, count)), room_(each_) {}

  // put(lane, amount) for each part of `amount`.
  template <typename Put>
  void fill(int64_t amount, const Put& put) {
    while (amount > 0) {
      if (room_ == 0) {
        ++lane_;
        room_ = each_;
      }
      const int64_t part = std::min(amount, room_);
      put(lane_, part);
      amount -= part;
      room_ -= part;
    }
  }

 private:
  int lane_;
  const int64_t each_;
  int64_t room_;
};

}  // namespace

CardLanes card_lanes(std::span<const double> card_rates, int most) {
  CHECK(!card_rates.empty() && most >= 1 && most <= kMostCardLanes);
  const double slowest = *std::min_element(card_rates.begin(), card_rates.end());
  CardLanes lanes;
  for (const double rate : card_rates) {
    const double times = std::min(rate / slowest, static_cast<double>(most));
    lanes.count.push_back(std::max(1, static_cast<int>(std::lround(times))));
    lanes.rate.push_back(rate / lanes.count.back());
  }
  return lanes;
}

double lane_bound(const SquareMatrix<double>& traffic, const CardLanes& lanes) {
  const int n = traffic.size();
  CHECK(std::ssize(lanes.count) == n && std::ssize(lanes.rate) == n);
  std::vector<double> sent(n, 0), received(n, 0);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (i == j) continue;
      const double time = traffic.at(i, j) / std::min(lanes.rate[i], lanes.rate[j]);
      sent[i] += time;
      received[j] += time;
    }
  }
  double bound = 0;
  for (int d = 0; d < n; ++d) {
    bound = std::max(bound, std::max(sent[d], received[d]) / lanes.count[d]);
  }
  return bound;
}

CardLanes worthwhile_lanes(const SquareMatrix<double>& traffic, std::span<const double> card_rates,
                           int most) {
  CardLanes one = card_lanes(card_rates, 1), several = card_lanes(card_rates, most);
  const double least = kWorthwhile * lane_bound(traffic, one);
  return lane_bound(traffic, several) <= least ? std::move(several) : std::move(one);
}

SquareMatrix<int64_t> between_lanes(const SquareMatrix<int64_t>& traffic,
                                    std::span<const int> count) {
  const int n = traffic.size();
  std::vector<int> first = {0};  // [device] its first lane, and the number of lanes
  for (const int lanes : count) first.push_back(first.back() + lanes);
  const std::vector<int64_t> sent = sent_by_device(traffic), received = received_by_device(traffic);
  // [receiver] the lanes that send to it, and how much
  std::vector<std::vector<std::pair<int, int64_t>>> arriving(n);
  for (int i = 0; i < n; ++i) {
    LaneFiller lanes(first[i], count[i], sent[i]);
    for (int j = 0; j < n; ++j) {
      lanes.fill(traffic.at(i, j),
                 [&](int lane, int64_t amount) { arriving[j].emplace_back(lane, amount); });
    }
  }
  SquareMatrix<int64_t> between(first.back());
  for (int j = 0; j < n; ++j) {
    LaneFiller lanes(first[j], count[j], received[j]);
    for (const auto& [sender, amount] : arriving[j]) {
      lanes.fill(amount, [&](int lane, int64_t part) { between.at(sender, lane) += part; });
    }
  }
  return between;
}

}  // namespace pagoda
