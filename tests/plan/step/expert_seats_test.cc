// Seats against every placement there is: never beyond the bounds of Graham and of Gonzalez, Ibarra
// and Sahni, at Graham's in his example; the balance they reach on skewed routing.
#include "plan/step/expert_seats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace pagoda {
namespace {

using Rows = std::vector<int64_t>;
using Speeds = std::vector<double>;

double longest_first(const Rows& rows, const Speeds& speeds) {
  return busiest_device(rows, place_longest_first(rows, speeds), speeds);
}

double balanced(const Rows& rows, const Speeds& speeds) {
  return busiest_device(rows, place_balanced(rows, speeds), speeds);
}

Speeds equal(int devices) { return Speeds(static_cast<size_t>(devices), 1.0); }

int64_t sum(const Rows& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

// The least that the busiest device can have.
class BruteForce {
 public:
  BruteForce(const Rows& rows, const Speeds& speeds)
      : rows_(rows), speeds_(speeds), loads_(speeds.size(), 0) {
    place(0, 0);
  }
  double best() const { return best_; }

 private:
  void place(size_t e, double most) {
    if (most >= best_) return;
    if (e == rows_.size()) {
      best_ = most;
      return;
    }
    for (size_t d = 0; d < speeds_.size(); ++d) {
      loads_[d] += rows_[e];
      place(e + 1, std::max(most, static_cast<double>(loads_[d]) / speeds_[d]));
      loads_[d] -= rows_[e];
    }
  }
  const Rows& rows_;
  const Speeds& speeds_;
  std::vector<int64_t> loads_;
  double best_ = std::numeric_limits<double>::infinity();
};

// Graham 1969, of the least possible.
double longest_first_bound(int devices) { return 4.0 / 3 - 1.0 / (3.0 * devices); }

TEST(ExpertSeats, MeetGrahamsExample) {
  const Rows rows = {5, 5, 4, 4, 3, 3, 3};
  EXPECT_EQ(longest_first(rows, equal(3)), 11);
  EXPECT_EQ(BruteForce(rows, equal(3)).best(), 9);
  EXPECT_DOUBLE_EQ(longest_first_bound(3), 11.0 / 9);
  // Any number of devices: two each of 2k - 1 down to k + 1, and three of k.
  for (int k = 2; k <= 40; ++k) {
    Rows each;
    for (int t = 2 * k - 1; t > k; --t) each.insert(each.end(), 2, t);
    each.insert(each.end(), 3, k);
    EXPECT_EQ(longest_first(each, equal(k)), 4 * k - 1);
    const double mean = static_cast<double>(sum(each)) / k;
    EXPECT_EQ(mean, 3 * k);  // the optimum, 3 k, cannot be below it
    EXPECT_NEAR((4.0 * k - 1) / mean, longest_first_bound(k), 1e-15 * 4);
  }
}

// Powers of two as speeds, so that ends are exact.
TEST(ExpertSeats, StayWithinTheBoundsOfEveryPlacement) {
  double worst = 0, worst_balanced = 0;
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int devices = static_cast<int>(2 + random() % 3);
    Speeds speeds = equal(devices);
    const bool unequal = seed % 2 == 0;
    for (double& speed : speeds) speed = unequal ? std::exp2(random() % 3) : 1;
    Rows rows(1 + random() % 8);
    const uint32_t range = 2 + random() % 30;
    for (int64_t& r : rows) r = random() % range;
    const double best = BruteForce(rows, speeds).best();
    const double longest = longest_first(rows, speeds), after = balanced(rows, speeds);
    EXPECT_GE(longest, best);
    if (unequal) {
      EXPECT_LE((devices + 1) * longest, 2 * devices * best);
    } else {
      EXPECT_LE(3 * devices * longest, (4 * devices - 1) * best);
    }
    EXPECT_GE(after, best);
    EXPECT_LE(after, longest);
    if (best > 0) worst = std::max(worst, longest / best);
    if (best > 0) worst_balanced = std::max(worst_balanced, after / best);
  }
  std::printf("worst %.4f of the optimum, balanced %.4f\n", worst, worst_balanced);
}

struct Balance {
  double longest_first = 0;  // max / mean over devices
  double balanced = 0;       // the same of place_balanced
  double best = 0;           // of every placement; of 8 experts only
  double by_number = 0;      // with expert e on device e % devices
  double floor = 0;          // what max / mean cannot be below
};

constexpr double kTarget = 1.05;
constexpr int kCases = 50;

// Ratios to the floor of one algorithm.
struct Cases {
  double worst = 0, sum = 0, excess = 0;
  int beyond = 0;

  void add(double reached, double floor, bool each_within) {
    if (each_within) {
      EXPECT_LE(reached, kTarget * floor);
    }
    beyond += reached > kTarget * floor;
    worst = std::max(worst, reached / floor);
    sum += reached / floor;
    if (floor == 1) excess += reached - 1;
  }
  void print() const { std::printf("  %.4f %.4f %4d  ", worst, excess / kCases, beyond); }
};

// Tokens by a power law, experts in random order.
Balance balance_of(std::mt19937& random, size_t num_experts, int devices, double power) {
  Rows rows;
  for (size_t e = 0; e < num_experts; ++e) {
    const double noise = 0.5 + static_cast<double>(random() % 1000) / 1000;
    const double tokens = 1e6 * noise / std::pow(static_cast<double>(e + 1), power);
    rows.push_back(std::llround(tokens) + 1);
  }
  std::shuffle(rows.begin(), rows.end(), random);
  const double mean = static_cast<double>(sum(rows)) / devices;
  std::vector<int> by_number;
  for (size_t e = 0; e < num_experts; ++e) by_number.push_back(static_cast<int>(e) % devices);
  const auto hottest = static_cast<double>(*std::max_element(rows.begin(), rows.end()));
  const Speeds speeds = equal(devices);
  Balance balance;
  balance.floor = std::max(1.0, hottest / mean);
  balance.longest_first = longest_first(rows, speeds) / mean;
  balance.balanced = balanced(rows, speeds) / mean;
  if (num_experts == 8) balance.best = BruteForce(rows, speeds).best() / mean;
  balance.by_number = busiest_device(rows, by_number, speeds) / mean;
  return balance;
}

// The target: the busiest device at most 1.05 of the mean or, where that is more, of the hottest
// expert; and where it is the mean, half the excess over it of experts dealt by number (of all such
// cases together; a single one may be in balance by chance). With eight experts a device every case
// meets it; with four only their mean does, for single experts are large there: how many cases do
// not is printed, and of how many with 8 experts the best placement there is does not either.
TEST(ExpertSeats, BalanceSkewedRouting) {
  std::printf(
      "            longest first            balanced                by number\n"
      "   E  k  power  worst  excess beyond   worst  excess beyond  excess\n");
  int beyond_best = 0;
  for (const int devices : {2, 4, 8}) {
    for (const size_t each : {4, 8, 16}) {
      for (const double power : {0.0, 0.5, 1.0, 1.5}) {
        const size_t num_experts = each * static_cast<size_t>(devices);
        Cases longest, balanced;
        double by_number = 0;
        for (uint32_t seed = 1; seed <= kCases; ++seed) {
          SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << num_experts
                                          << " experts on " << devices << ", power " << power);
          std::mt19937 random(seed);
          const Balance balance = balance_of(random, num_experts, devices, power);
          EXPECT_LE(balance.balanced, balance.longest_first);
          longest.add(balance.longest_first, balance.floor, each >= 8);
          balanced.add(balance.balanced, balance.floor, each >= 8);
          if (balance.floor == 1) by_number += balance.by_number - 1;
          if (num_experts == 8) beyond_best += balance.best > kTarget * balance.floor;
        }
        EXPECT_LE(longest.excess, by_number / 2);
        EXPECT_LE(balanced.excess, by_number / 2);
        EXPECT_LE(longest.sum / kCases, kTarget);
        EXPECT_LE(balanced.sum / kCases, kTarget);
        std::printf("%4zu %2d  %5.1f", num_experts, devices, power);
        longest.print();
        balanced.print();
        std::printf("  %.4f\n", by_number / kCases);
      }
    }
  }
  std::printf("the best placement is beyond in %d of %d cases with 8 experts\n", beyond_best,
              4 * kCases);
}

// Ten to six: 160 equal experts end together with 100 and 60.
TEST(ExpertSeats, FollowSpeeds) {
  const Rows rows(160, 7);
  const Speeds speeds = {10, 6};
  const std::vector<int> seats = place_balanced(rows, speeds);
  EXPECT_EQ(std::count(seats.begin(), seats.end(), 0), 100);
}

TEST(ExpertSeats, AreAtHomeUnlessTheRunMovesThem) {
  RunShape shape;
  shape.num_layers = 1;
  shape.is_moe = {1};
  shape.num_experts = 3;
  shape.layer_record = {0};
  shape.devices = 2;
  shape.row_block = 10;
  shape.group_blocks = 2;
  for (int64_t e = -1; e < 3; ++e) shape.records.push_back({.expert = e, .device = e == 1});
  const Rows rows = {1, 1, 9};
  EXPECT_EQ(layer_seats(shape, 0, rows), (std::vector<int>{0, 1, 0}));
  shape.seat_speeds = {1, 1};
  EXPECT_EQ(layer_seats(shape, 0, rows), (std::vector<int>{1, 1, 0}));
  EXPECT_EQ(layer_seats(shape, 0, {}), (std::vector<int>{0, 1, 0})) << "before routing";
}

// Balance comes first, and then that experts have the seats that they had before: a device that
// would end late gives what makes it end with the others.
TEST(ExpertSeats, AreNearHome) {
  const std::vector<int> home = {0, 1, 0, 1, 0, 1};
  const Speeds speeds = equal(2);
  const auto seats = [&](const Rows& rows) { return place_near_home(rows, speeds, {}, home); };
  EXPECT_EQ(seats({5, 4, 3, 3, 2, 3}), home) << "10 and 10";
  EXPECT_EQ(seats({50, 50, 31, 30, 20, 19}), home) << "101 and 99, where 100 could be";
  EXPECT_EQ(seats({5, 4, 3, 3, 6, 3}), (std::vector<int>{1, 1, 0, 0, 0, 1})) << "14 and 10";
  std::mt19937 random(3);
  int64_t moved = 0, moved_for_balance = 0;
  for (int i = 0; i < 1000; ++i) {
    const size_t devices = 2 + random() % 3;
    Speeds unequal;
    for (size_t d = 0; d < devices; ++d) unequal.push_back(1 + static_cast<double>(random() % 3));
    Rows rows;
    std::vector<int> homes;
    for (size_t e = 0; e < 32; ++e) {
      rows.push_back(static_cast<int64_t>(random() % 100));
      homes.push_back(static_cast<int>(e % devices));
    }
    const std::vector<int> near = place_near_home(rows, unequal, {}, homes);
    const std::vector<int> even = place_balanced(rows, unequal);
    EXPECT_LE(busiest_device(rows, near, unequal), 1.02 * busiest_device(rows, even, unequal));
    for (size_t e = 0; e < rows.size(); ++e) {
      moved += near[e] != homes[e];
      moved_for_balance += even[e] != homes[e];
    }
  }
  EXPECT_LT(2 * moved, moved_for_balance);
}

// Two devices with groups of two blocks: experts of a block fill a wave by four. Where the first
// wave left more to a device, it takes less of the next.
TEST(ExpertSeats, AreBalancedWaveByWave) {
  RunShape shape;
  shape.num_experts = 8;
  shape.devices = 2;
  shape.row_block = 10;
  shape.group_blocks = 2;
  shape.seat_speeds = {1, 1};
  shape.layer_record = {0};
  for (int e = -1; e < 8; ++e) shape.records.push_back({.expert = e, .device = e & 1});
  EXPECT_EQ(layer_seats(shape, 0, Rows{9, 2, 2, 2, 9, 1, 1, 1}),
            (std::vector<int>{0, 1, 1, 1, 1, 0, 0, 0}));
}

}  // namespace
}  // namespace pagoda
