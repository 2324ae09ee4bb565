// Orders of all-to-alls against the bound of the busiest line, computed here by itself, and against
// senders that each keep an order of their own (papers: Aurora).
#include "plan/rounds/transmission_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "plan/rounds/bipartite_matching.h"
#include "plan/rounds/traffic.h"
#include "tests/testing/plan/aurora_baselines.h"
#include "tests/testing/plan/random_traffic.h"

namespace pagoda {
namespace {

template <typename T>
T busiest_line(const SquareMatrix<T>& traffic) {
  T most = T();
  for (int line = 0; line < traffic.size(); ++line) {
    T sent = T(), received = T();
    for (int other = 0; other < traffic.size(); ++other) {
      if (other == line) continue;
      sent += traffic.at(line, other);
      received += traffic.at(other, line);
    }
    most = std::max({most, sent, received});
  }
  return most;
}

// Every device with one partner at most on either side, and pieces that fit into their round.
template <typename T>
void expect_round(const TransmissionRound<T>& round, int devices) {
  std::vector<char> sends(devices, 0), receives(devices, 0);
  EXPECT_FALSE(round.transmissions.empty());
  EXPECT_GT(round.duration, T());
  for (const Transmission<T>& piece : round.transmissions) {
    ASSERT_NE(piece.sender, piece.receiver);
    EXPECT_FALSE(std::exchange(sends.at(piece.sender), 1)) << "sender " << piece.sender;
    EXPECT_FALSE(std::exchange(receives.at(piece.receiver), 1)) << "receiver " << piece.receiver;
    EXPECT_GT(piece.amount, T());
    EXPECT_LE(piece.amount, round.duration);
  }
}

// What each device sent each other; checks the rounds and their number on its way.
template <typename T>
SquareMatrix<T> carried(const std::vector<TransmissionRound<T>>& rounds, int devices) {
  EXPECT_LE(rounds.size(), static_cast<size_t>(devices * devices - 2 * devices + 2));
  SquareMatrix<T> amounts(devices);
  for (const auto& round : rounds) {
    expect_round(round, devices);
    for (const auto& piece : round.transmissions) {
      amounts.at(piece.sender, piece.receiver) += piece.amount;
    }
  }
  return amounts;
}

int pick(std::mt19937& random, int n) {
  return static_cast<int>(random() % static_cast<uint32_t>(n));
}

// Full, sparse, with one busy receiver, huge, equal, or nothing; with a diagonal.
SquareMatrix<int64_t> random_integers(std::mt19937& random, int n) {
  SquareMatrix<int64_t> traffic(n);
  const int kind = pick(random, 6), hot = pick(random, n);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      int64_t amount = pick(random, 101);
      if (kind == 1 && pick(random, 10) < 7) amount = 0;
      if (kind == 2 && j == hot) amount *= 50;
      if (kind == 3) amount = static_cast<int64_t>(random()) << 20;
      if (kind == 4) amount = 7;
      if (kind == 5 && pick(random, 3)) amount = 0;
      traffic.at(i, j) = amount;
    }
  }
  return traffic;
}

// All is carried in exactly the bound; in how many rounds.
size_t rounds_at_the_bound(SquareMatrix<int64_t> traffic) {
  auto order = transmission_order(traffic);
  EXPECT_TRUE(order.ok()) << order.status().message();
  if (!order.ok()) return 0;
  for (int i = 0; i < traffic.size(); ++i) traffic.at(i, i) = 0;
  EXPECT_EQ(order_duration(*order), busiest_line(traffic));
  EXPECT_EQ(carried(*order, traffic.size()), traffic);
  return order->size();
}

TEST(TransmissionOrder, MeetsTheBoundOnIntegersExactly) {
  size_t most_rounds = 0, all_rounds = 0;
  int moved = 0;
  for (uint32_t seed = 1; seed <= 10000; ++seed) {
    std::mt19937 random(seed);
    const int n = 1 + pick(random, 8);
    const size_t rounds = rounds_at_the_bound(random_integers(random, n));
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    moved += rounds > 0;
    most_rounds = std::max(most_rounds, rounds);
    all_rounds += rounds;
  }
  EXPECT_GT(moved, 8000);
  std::printf("seeds 1 to 10000: %d matrices of up to 8 devices with traffic, %zu rounds, at most "
              "%zu (there may be 50)\n", moved, all_rounds, most_rounds);
}

TEST(TransmissionOrder, MeetsTheBoundOnManyDevices) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const int n = 9 + pick(random, 24);
    rounds_at_the_bound(random_integers(random, n));
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

// All is carried, and no more than 1e-9 of the bound beyond it. Pieces are multiples of one power
// of two below 2^53 of it, so that their sums are exact; the bound's own sum here is rounded.
void expect_real_order(const SquareMatrix<double>& traffic) {
  auto order = transmission_order(traffic);
  ASSERT_TRUE(order.ok()) << order.status().message();
  const double bound = busiest_line(traffic);
  EXPECT_NEAR(order_duration(*order), bound, 1e-9 * bound);
  const SquareMatrix<double> amounts = carried(*order, traffic.size());
  for (int i = 0; i < traffic.size(); ++i) {
    for (int j = 0; j < traffic.size(); ++j) {
      if (i == j) continue;
      EXPECT_GE(amounts.at(i, j), traffic.at(i, j)) << i << " " << j;
      EXPECT_LE(amounts.at(i, j), traffic.at(i, j) + 1e-9 * bound) << i << " " << j;
    }
  }
}

TEST(TransmissionOrder, MeetsTheBoundOnRationals) {
  for (uint32_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int n = 2 + pick(random, 7);
    // The amounts have any magnitude: seconds, bytes.
    const double unit = std::pow(10.0, pick(random, 40) - 25);
    SquareMatrix<double> traffic(n);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        traffic.at(i, j) = unit * pick(random, 1000) / (1 + pick(random, 997));
      }
    }
    expect_real_order(traffic);
    ASSERT_FALSE(testing::Test::HasFailure());
  }
}

// The same rounds in plain floating point: rounding leaves lines that no longer add up, and at some
// round there is no perfect matching. Whether all goes by.
bool goes_by_in_floats(SquareMatrix<double> left) {
  const int n = left.size();
  for (int i = 0; i < n; ++i) left.at(i, i) = 0;
  const double bound = busiest_line(left);
  std::vector<double> sent(n, 0), received(n, 0);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      sent[i] += left.at(i, j);
      received[j] += left.at(i, j);
    }
  }
  for (int i = 0; i < n; ++i) {  // idle time
    for (int j = 0; j < n; ++j) {
      const double idle = std::min(bound - sent[i], bound - received[j]);
      left.at(i, j) += idle;
      sent[i] += idle;
      received[j] += idle;
    }
  }
  SquareMatrix<uint8_t> edges(n);
  for (int rounds = 0; rounds <= n * n; ++rounds) {
    bool any = false;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) any |= edges.at(i, j) = left.at(i, j) > 0;
    }
    if (!any) return true;
    BipartiteMatching matching(n);
    complete(edges, matching);
    if (!matching.perfect()) return false;
    double duration = bound;
    for (int i = 0; i < n; ++i) {
      duration = std::min(duration, left.at(i, matching.column_of_row[i]));
    }
    for (int i = 0; i < n; ++i) left.at(i, matching.column_of_row[i]) -= duration;
  }
  return false;
}

TEST(TransmissionOrder, GoesByWherePlainFloatsGetStuck) {
  constexpr int kMatrices = 1500;
  int stuck = 0;
  for (uint64_t seed = 1; seed <= kMatrices; ++seed) {
    const int n = 2 + static_cast<int>(seed % 7);
    const SquareMatrix<double> traffic = lognormal_traffic(n, 1, seed);
    stuck += !goes_by_in_floats(traffic);
    expect_real_order(traffic);
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  std::printf("seeds 1 to %d, lognormal, 2 to 8 devices: plain floats get stuck in %d\n", kMatrices,
              stuck);
  EXPECT_GT(stuck, kMatrices / 10);
}

// Algorithm 1 as far as the text tells it: the device with most traffic first, then the others by
// what they have, each sending in every slot to any device that receives from nobody yet.
int64_t greedy_slots(SquareMatrix<int64_t> left) {
  const int n = left.size();
  std::vector<int64_t> sent = sent_by_device(left), received = received_by_device(left);
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return std::max(sent[a], received[a]) > std::max(sent[b], received[b]);
  });
  std::vector<std::vector<char>> taken;  // [slot][receiver]
  for (const int sender : order) {
    for (size_t slot = 0; sent[sender] > 0; ++slot) {
      if (slot == taken.size()) taken.emplace_back(n, 0);
      for (int receiver = 0; receiver < n; ++receiver) {
        if (receiver == sender || left.at(sender, receiver) == 0) continue;
        if (taken[slot][receiver]) continue;
        taken[slot][receiver] = 1;
        --left.at(sender, receiver);
        --sent[sender];
        break;
      }
    }
  }
  return static_cast<int64_t>(taken.size());
}

// It gets stuck: an independent simulation of the paper's greedy missed the bound in 9 to 10 % of
// its matrices, at worst by 29 %.
TEST(TransmissionOrder, IsShorterThanTheGreedyOne) {
  constexpr int kMatrices = 1000;
  int missed = 0;
  double worst = 1;
  for (uint32_t seed = 1; seed <= kMatrices; ++seed) {
    std::mt19937 random(seed);
    const int n = 3 + pick(random, 6);
    SquareMatrix<int64_t> traffic(n);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) traffic.at(i, j) = i == j ? 0 : pick(random, 30);
    }
    const int64_t bound = busiest_line(traffic), greedy = greedy_slots(traffic);
    ASSERT_EQ(order_duration(*transmission_order(traffic)), bound);
    ASSERT_GE(greedy, bound) << "seed " << seed;
    missed += greedy > bound;
    worst = std::max(worst, static_cast<double>(greedy) / static_cast<double>(bound));
  }
  std::printf("seeds 1 to %d, 3 to 8 devices: greedy slots miss the bound in %d, worst %.2f\n",
              kMatrices, missed, worst);
  EXPECT_GT(missed, 0);
}

TEST(TransmissionOrder, MeetsTheBoundOfLinksWithOnePartnerAtATime) {
  constexpr double kBytesPerS[] = {12.5e9, 10e9, 6.25e9, 5e9};
  int smaller = 0;
  double ratios = 0, largest = 1;
  constexpr int kMatrices = 10000;
  for (uint32_t seed = 1; seed <= kMatrices; ++seed) {
    std::mt19937 random(seed);
    const int n = 2 + pick(random, 7);
    const SquareMatrix<double> traffic = lognormal_traffic(n, 1, seed);
    std::vector<double> bytes_per_s;
    SquareMatrix<double> expected(n);
    for (int d = 0; d < n; ++d) bytes_per_s.push_back(kBytesPerS[pick(random, 4)]);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        expected.at(i, j) = traffic.at(i, j) / std::min(bytes_per_s[i], bytes_per_s[j]);
      }
    }
    auto seconds = link_seconds(traffic, bytes_per_s);
    ASSERT_TRUE(seconds.ok());
    ASSERT_EQ(*seconds, expected);
    expect_real_order(expected);
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    const double ratio = busiest_line(expected) / concurrent_bound_s(traffic, bytes_per_s);
    // Both are sums of at most 7 terms over one of them: equal up to their rounding.
    ASSERT_GE(ratio, 1 - 1e-14);
    smaller += ratio > 1 + 1e-14;
    ratios += ratio;
    largest = std::max(largest, ratio);
  }
  std::printf("seeds 1 to %d, lognormal, 2 to 8 devices of 4 bandwidths: Theorem 5.2's bound is "
              "smaller than one partner at a time in %.0f %%, mean %.3f, largest %.2f\n",
              kMatrices, 100.0 * smaller / kMatrices, ratios / kMatrices, largest);
  EXPECT_GT(smaller, kMatrices / 4);
}

// Figure 4: devices 0 and 1 send one unit to each of the other two.
TEST(TransmissionQueues, FigureFour) {
  SquareMatrix<double> traffic(3);
  traffic.at(0, 1) = traffic.at(0, 2) = traffic.at(1, 0) = traffic.at(1, 2) = 1;
  const std::vector<double> bandwidth(3, 1);
  EXPECT_EQ(*queued_seconds(traffic, bandwidth, {{1, 2, 0}, {0, 2, 1}, {0, 1, 2}}), 3);
  EXPECT_EQ(*queued_seconds(traffic, bandwidth, {{1, 2, 0}, {2, 0, 1}, {0, 1, 2}}), 2);
  auto order = transmission_order(traffic);
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(order_duration(*order), 2);
}

// A sender of bandwidth 1 and one of 4 to a receiver of 4: 1 and 3 until the second is done.
TEST(TransmissionQueues, SlowSendersLeaveTheRestToOthers) {
  SquareMatrix<double> traffic(3);
  traffic.at(0, 2) = 5;
  traffic.at(1, 2) = 6;
  const std::vector<double> bandwidth = {1, 4, 4};
  const SendingOrder order = {{0, 1, 2}, {0, 1, 2}, {0, 1, 2}};
  EXPECT_EQ(*queued_seconds(traffic, bandwidth, order), 5);
  traffic.at(0, 2) = 2;
  EXPECT_EQ(*queued_seconds(traffic, bandwidth, order), 2);
}

TEST(LinaPacking, LargestBesideSmallest) {
  EXPECT_EQ(lina_packing(std::vector<double>{5, 1, 9, 3}), (std::vector<int>{1, 0, 0, 1}));
}

TEST(TransmissionQueues, OrdersAreOfAllDevices) {
  SquareMatrix<double> traffic(3);
  traffic.at(1, 0) = 3;
  traffic.at(1, 2) = 2;
  EXPECT_EQ(shortest_first(traffic)[1], (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(random_sending_order(8, 5), random_sending_order(8, 5));
  EXPECT_NE(random_sending_order(8, 5), random_sending_order(8, 6));
  for (std::vector<int> receivers : random_sending_order(8, 5)) {
    std::sort(receivers.begin(), receivers.end());
    EXPECT_EQ(receivers, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
}

// An independent simulation measured 1.35 (SJF) and 1.36 (random); the paper calls them alike.
TEST(TransmissionQueues, ShortestFirstAndRandomAgainstTheBound) {
  constexpr int kMatrices = 1000, kDevices = 8;
  const std::vector<double> bandwidth(kDevices, 1);
  double sjf = 0, random = 0, least = 2, largest = 1;
  for (uint64_t seed = 1; seed <= kMatrices; ++seed) {
    const SquareMatrix<double> traffic = lognormal_traffic(kDevices, 1, seed);
    const double bound = busiest_line(traffic);
    const double ratios[] = {
        *queued_seconds(traffic, bandwidth, shortest_first(traffic)) / bound,
        *queued_seconds(traffic, bandwidth, random_sending_order(kDevices, seed)) / bound};
    sjf += ratios[0] / kMatrices;
    random += ratios[1] / kMatrices;
    for (double ratio : ratios) {
      least = std::min(least, ratio);
      largest = std::max(largest, ratio);
    }
  }
  std::printf("seeds 1 to %d, lognormal (sigma 1), %d devices, over the bound: SJF %.3f, "
              "random %.3f, least %.3f, largest %.2f\n",
              kMatrices, kDevices, sjf, random, least, largest);
  // The time is a sum of at most 56 steps, each rounded: 1e-13 of the bound.
  EXPECT_GE(least, 1 - 1e-13);
  EXPECT_GT(sjf, 1.2);
  EXPECT_GT(random, 1.2);
  EXPECT_NEAR(sjf, random, 0.05);
}

TEST(TransmissionQueues, NeverBelowTheBoundOfUnequalDevices) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    std::mt19937 random(seed);
    const int n = 2 + pick(random, 7);
    const SquareMatrix<double> traffic = lognormal_traffic(n, 1.5, seed);
    std::vector<double> bytes_per_s;
    for (int d = 0; d < n; ++d) bytes_per_s.push_back(1 + pick(random, 10));
    const double bound_s = concurrent_bound_s(traffic, bytes_per_s);
    for (const SendingOrder& order : {shortest_first(traffic), random_sending_order(n, seed)}) {
      ASSERT_GE(*queued_seconds(traffic, bytes_per_s, order), bound_s * (1 - 1e-13))
          << "seed " << seed;
    }
  }
}

void expect_refused(const Status& status, const char* words) {
  EXPECT_EQ(status.code(), Exit::kUsage);
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
}

TEST(TransmissionOrder, NonsenseIsRefused) {
  SquareMatrix<double> traffic(3, 1);
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), -1.0,
                     std::numeric_limits<double>::infinity()}) {
    traffic.at(2, 1) = bad;
    expect_refused(transmission_order(traffic).status(), "from device 2 to device 1");
  }
  traffic.at(2, 1) = 1;
  SquareMatrix<int64_t> integers(2, 3);
  integers.at(0, 1) = -1;
  expect_refused(transmission_order(integers).status(), "from device 0 to device 1");
  integers.at(0, 1) = int64_t{1} << 62;
  expect_refused(transmission_order(integers).status(), "larger unit");
  expect_refused(transmission_order(SquareMatrix<double>(2, 1e308)).status(), "larger unit");
  expect_refused(transmission_order(SquareMatrix<int64_t>()).status(), "without devices");
  for (double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    const std::vector<double> bandwidth = {1, bad, 1};
    expect_refused(link_seconds(traffic, bandwidth).status(), "bandwidths of devices: number 1");
  }
  const std::vector<double> bandwidth(3, 1), few(2, 1);
  expect_refused(link_seconds(traffic, few).status(), "there are 2, not 3");
  expect_refused(queued_seconds(traffic, bandwidth, {}).status(), "there are none");
  expect_refused(queued_seconds(traffic, bandwidth, {{1, 2}, {0, 2}, {0, 1}}).status(), "not 3");
  expect_refused(queued_seconds(traffic, bandwidth, {{0, 1, 2}, {0, 1, 3}, {0, 1, 2}}).status(),
                 "[0, 3)");
  expect_refused(queued_seconds(traffic, bandwidth, {{0, 1, 2}, {0, 1, 1}, {0, 1, 2}}).status(),
                 "twice");
}

}  // namespace
}  // namespace pagoda
