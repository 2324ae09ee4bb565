// Rounds of parcels between devices whose network cards are unequally fast, or which share cards:
// counted by hand, and at random against the bounds with one partner at a time and with several.
#include "plan/rounds/exchange_rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "plan/rounds/traffic.h"
#include "tests/testing/plan/aurora_baselines.h"

namespace pagoda {
namespace {

using Legs = std::vector<ExchangeLeg>;
using Rates = std::vector<double>;

// Each parcel's parts go straight to its device, ascend and are the whole of it.
void expect_whole(const std::vector<ParcelBytes>& parcels, const Legs& legs) {
  std::vector<int64_t> sent(parcels.size(), 0);
  for (const ExchangeLeg& leg : legs) {
    ASSERT_EQ(leg.kind, ExchangeLeg::Kind::kStraight);
    ASSERT_LT(leg.parcel, parcels.size());
    EXPECT_EQ(leg.from, parcels[leg.parcel].from);
    EXPECT_EQ(leg.to, parcels[leg.parcel].to);
    EXPECT_EQ(leg.first_byte, sent[leg.parcel]);
    EXPECT_GT(leg.bytes, 0);
    sent[leg.parcel] += leg.bytes;
    EXPECT_EQ(leg.ends, sent[leg.parcel] == parcels[leg.parcel].bytes);
  }
  for (size_t i = 0; i < parcels.size(); ++i) EXPECT_EQ(sent[i], parcels[i].bytes);
}

// Seconds until all has come. A lane of a receiver takes one part behind the other, and a parcel's
// parts come in their order; of those that may come now each has what both cards have left, the
// first ones first. `rates`: [card]. `cards`: [device]; empty: each has its own.
double executed_s(const Legs& legs, const Rates& rates, const std::vector<int>& cards = {}) {
  const auto card = [&](int device) {
    const auto d = static_cast<size_t>(device);
    return cards.empty() ? d : static_cast<size_t>(cards[d]);
  };
  std::vector<double> left;
  for (const ExchangeLeg& leg : legs) left.push_back(static_cast<double>(leg.bytes));
  double now_s = 0;
  for (size_t open = legs.size(); open > 0;) {
    std::set<std::pair<int, int>> lanes;  // [device, lane] that have a part before
    std::set<size_t> parcels;
    Rates sends = rates, takes = rates;
    std::vector<std::pair<size_t, double>> moving;  // [leg] at its rate
    double next_s = 0;
    for (size_t i = 0; i < legs.size(); ++i) {
      const ExchangeLeg& leg = legs[i];
      if (left[i] == 0) continue;
      const bool first = lanes.emplace(leg.to, leg.lane).second;
      if (!parcels.insert(leg.parcel).second || !first) continue;
      double &from = sends[card(leg.from)], &to = takes[card(leg.to)];
      const double rate = std::min(from, to);
      if (rate < 1e-9) continue;
      from -= rate;
      to -= rate;
      moving.emplace_back(i, rate);
      const double ends_s = left[i] / rate;
      next_s = next_s == 0 ? ends_s : std::min(next_s, ends_s);
    }
    for (const auto& [i, rate] : moving) {
      left[i] -= rate * next_s;
      if (left[i] > 1e-6 * static_cast<double>(legs[i].bytes)) continue;
      left[i] = 0;
      --open;
    }
    now_s += next_s;
  }
  return now_s;
}

struct Case {
  Rates rates;
  std::vector<ParcelBytes> parcels;

  SquareMatrix<double> traffic() const {
    SquareMatrix<double> bytes(static_cast<int>(rates.size()));
    for (const ParcelBytes& of : parcels) bytes.at(of.from, of.to) = static_cast<double>(of.bytes);
    return bytes;
  }
  // With one partner at a time; and what Theorem 5.2 states.
  double one_partner_s() const { return line_bound(*link_seconds(traffic(), rates)); }
  double stated_s() const { return concurrent_bound_s(traffic(), rates); }
};

// Devices of one to four times the slowest rate. Parcels of large messages, some of them missing;
// `by_rate`: as many bytes as the receiver is fast, as if it had so many experts.
Case random_case(uint32_t seed, bool by_rate) {
  std::mt19937 random(seed);
  Case drawn;
  const int devices = 3 + static_cast<int>(random() % 6);
  for (int d = 0; d < devices; ++d) drawn.rates.push_back(1 + static_cast<double>(random() % 4));
  for (int to = 0; to < devices; ++to) {
    for (int from = 0; from < devices; ++from) {
      if (from == to || random() % 5 == 0) continue;
      int64_t bytes = kMiB + static_cast<int64_t>(random() % kMiB);
      if (by_rate) bytes *= static_cast<int64_t>(drawn.rates[static_cast<size_t>(to)]);
      drawn.parcels.push_back({from, to, bytes});
    }
  }
  return drawn;
}

// Devices 0 and 1 are slow, 2 and 3 twice as fast. A round in which the fast ones have each other
// moves twice as many bytes there as between the slow ones.
TEST(ExchangeRounds, AreAsLongForEachPair) {
  const std::vector<ParcelBytes> parcels = {
      {0, 1, 128 * kKiB}, {2, 3, 256 * kKiB}, {0, 3, 64 * kKiB}, {2, 1, 64 * kKiB}};
  const Rates rates = {1, 1, 2, 2};
  const Legs legs = legs_in_rounds(parcels, rates, {}, 1);
  expect_whole(parcels, legs);
  // 0 and 1 are busy for 192 KiB at rate 1; 2 sends 256 at 2 and 64 at 1, 192 as well.
  EXPECT_DOUBLE_EQ(executed_s(legs, rates), 192 * kKiB);
  EXPECT_EQ(legs.size(), 4u) << "two rounds of whole parcels";
}

// Three slow devices send to one that is three times as fast: by a lane each.
TEST(ExchangeRounds, AFastCardTakesFromSeveral) {
  const std::vector<ParcelBytes> parcels = {{0, 3, 100'000}, {1, 3, 100'000}, {2, 3, 100'000}};
  const Rates rates = {10, 10, 10, 30};
  const Legs legs = legs_in_rounds(parcels, rates);
  expect_whole(parcels, legs);
  ASSERT_EQ(legs.size(), 3u);
  std::set<int> lanes;
  for (const ExchangeLeg& leg : legs) lanes.insert(leg.lane);
  EXPECT_EQ(lanes, (std::set<int>{0, 1, 2}));
  EXPECT_DOUBLE_EQ(executed_s(legs, rates), 10'000);
  // One behind the other, each at 10.
  EXPECT_DOUBLE_EQ(executed_s(legs_in_rounds(parcels, rates, {}, 1), rates), 30'000);
  EXPECT_DOUBLE_EQ(executed_s(legs_in_rounds(parcels), rates), 30'000);
}

// The other way round, the fast one sends to three at a time, each of which has one lane.
TEST(ExchangeRounds, AFastCardSendsToSeveral) {
  const std::vector<ParcelBytes> parcels = {{3, 0, 100'000}, {3, 1, 100'000}, {3, 2, 100'000}};
  const Rates rates = {10, 10, 10, 30};
  const Legs legs = legs_in_rounds(parcels, rates);
  expect_whole(parcels, legs);
  ASSERT_EQ(legs.size(), 3u);
  for (const ExchangeLeg& leg : legs) EXPECT_EQ(leg.lane, 0);
  EXPECT_DOUBLE_EQ(executed_s(legs, rates), 10'000);
}

// What several lanes of two fast cards carry at a time is one message. Beside two slow senders it
// has half of the card.
TEST(ExchangeRounds, FastCardsSendEachOtherOneMessage) {
  const std::vector<ParcelBytes> parcels = {{2, 3, 200'000}, {0, 3, 100'000}, {1, 3, 100'000}};
  const Rates rates = {10, 10, 40, 40};
  const Legs legs = legs_in_rounds(parcels, rates);
  expect_whole(parcels, legs);
  EXPECT_NEAR(executed_s(legs, rates), 10'000, 200);
  for (const ExchangeLeg& leg : legs) EXPECT_LT(leg.lane, 4);
  EXPECT_LE(legs.size(), 6u);
}

// Three cards of two devices each, and as many bytes from each device to each of other cards: each
// card sends and takes eight parcels, one behind the other.
TEST(ExchangeRounds, DevicesOfACardAreOne) {
  const std::vector<int> cards = {0, 0, 1, 1, 2, 2};
  std::vector<ParcelBytes> parcels;
  for (int to = 0; to < 6; ++to) {
    for (int from = 0; from < 6; ++from) {
      if (cards[static_cast<size_t>(from)] != cards[static_cast<size_t>(to)]) {
        parcels.push_back({from, to, 64 * kKiB});
      }
    }
  }
  const Legs legs = legs_in_rounds(parcels, {}, cards);
  expect_whole(parcels, legs);
  EXPECT_DOUBLE_EQ(executed_s(legs, {1, 1, 1}, cards), 8 * 64 * kKiB);
  EXPECT_EQ(legs.size(), parcels.size()) << "no parcel is divided";
}

// Parcels of a card that are no multiples of what parts are aligned to.
TEST(ExchangeRounds, ParcelsOfACardBeginAligned) {
  const std::vector<int> cards = {0, 0, 0, 1, 2};
  const std::vector<ParcelBytes> parcels = {{0, 3, 1},      {1, 3, 100'001}, {2, 3, 63},
                                            {0, 4, 70'007}, {3, 4, 5},       {4, 3, 90'001}};
  for (const Rates& rates : {Rates(), Rates{1, 1, 1, 2, 3}}) {
    const Legs legs = legs_in_rounds(parcels, rates, cards);
    expect_whole(parcels, legs);
    for (const ExchangeLeg& leg : legs) EXPECT_EQ(leg.first_byte % 64, 0);
  }
}

TEST(ExchangeRounds, EqualRatesAreAsNone) {
  const Case drawn = random_case(3, false);
  const Legs with = legs_in_rounds(drawn.parcels, Rates(drawn.rates.size(), 7.0));
  const Legs without = legs_in_rounds(drawn.parcels);
  ASSERT_EQ(with.size(), without.size());
  for (size_t i = 0; i < with.size(); ++i) {
    const auto key = [](const ExchangeLeg& leg) {
      return std::tuple(leg.parcel, leg.first_byte, leg.bytes, leg.ends, leg.lane);
    };
    EXPECT_EQ(key(with[i]), key(without[i]));
  }
}

// A card may be as much faster as a run file can say.
TEST(ExchangeRounds, AnyRatesCarryAll) {
  Case drawn = random_case(5, false);
  for (size_t d = 0; d < drawn.rates.size(); ++d) drawn.rates[d] = d % 2 == 0 ? 1e-6 : 1e6;
  drawn.parcels.front().bytes = 1;
  for (const int lanes : {1, kMostCardLanes}) {
    expect_whole(drawn.parcels, legs_in_rounds(drawn.parcels, drawn.rates, {}, lanes));
  }
}

struct Ratios {
  double sum = 0, largest = 0;
  int count = 0;
  void add(double ratio) {
    sum += ratio;
    largest = std::max(largest, ratio);
    ++count;
  }
  double mean() const { return sum / count; }
};

// One to three devices have a card. Executed, against the bound of the busiest card.
TEST(ExchangeRounds, ComeNearTheBoundOfTheBusiestCard) {
  Ratios by_cards, by_devices;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<int> cards;
    const int count = 3 + static_cast<int>(random() % 3);
    for (int c = 0; c < count; ++c) cards.insert(cards.end(), 1 + random() % 3, c);
    std::vector<ParcelBytes> parcels;
    std::vector<double> sent(cards.size(), 0), taken = sent;  // [card]
    for (int to = 0; to < std::ssize(cards); ++to) {
      for (int from = 0; from < std::ssize(cards); ++from) {
        const int from_card = cards[static_cast<size_t>(from)];
        const int to_card = cards[static_cast<size_t>(to)];
        if (from_card == to_card || random() % 5 == 0) continue;
        parcels.push_back({from, to, kMiB + static_cast<int64_t>(random() % kMiB)});
        sent[static_cast<size_t>(from_card)] += static_cast<double>(parcels.back().bytes);
        taken[static_cast<size_t>(to_card)] += static_cast<double>(parcels.back().bytes);
      }
    }
    const double bound_s =
        std::max(*std::ranges::max_element(sent), *std::ranges::max_element(taken));
    const Rates rates(static_cast<size_t>(count), 1.0);
    const Legs legs = legs_in_rounds(parcels, {}, cards);
    expect_whole(parcels, legs);
    by_cards.add(executed_s(legs, rates, cards) / bound_s);
    by_devices.add(executed_s(legs_in_rounds(parcels), rates, cards) / bound_s);
    if (testing::Test::HasFailure()) return;
  }
  std::printf("rounds of cards %.3f x the bound (at most %.3f); of devices %.3f x (%.3f)\n",
              by_cards.mean(), by_cards.largest, by_devices.mean(), by_devices.largest);
  EXPECT_LT(by_cards.mean(), 1.05);
  EXPECT_GT(by_devices.mean(), by_cards.mean());
}

// Executed, against the bounds.
TEST(ExchangeRounds, ComeNearTheBounds) {
  for (const bool by_rate : {false, true}) {
    Ratios one, several, assumed_equal, bounds;
    for (uint32_t seed = 1; seed <= 400; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const Case drawn = random_case(seed, by_rate);
      const std::vector<int> count = card_lanes(drawn.rates).count;
      const Legs with_one = legs_in_rounds(drawn.parcels, drawn.rates, {}, 1);
      const Legs with_several = legs_in_rounds(drawn.parcels, drawn.rates);
      for (const Legs& legs : {with_one, with_several}) expect_whole(drawn.parcels, legs);
      for (const ExchangeLeg& leg : with_one) EXPECT_EQ(leg.lane, 0);
      for (const ExchangeLeg& leg : with_several) {
        EXPECT_LT(leg.lane, count[static_cast<size_t>(leg.to)]);
      }
      if (testing::Test::HasFailure()) return;
      one.add(executed_s(with_one, drawn.rates) / drawn.one_partner_s());
      several.add(executed_s(with_several, drawn.rates) / drawn.stated_s());
      assumed_equal.add(executed_s(legs_in_rounds(drawn.parcels), drawn.rates) /
                        drawn.one_partner_s());
      bounds.add(drawn.one_partner_s() / drawn.stated_s());
    }
    std::printf(
        "%s: one partner at a time %.3f x its bound (at most %.3f); several %.3f x the stated "
        "bound (%.3f); rates unknown %.3f x (%.3f); the bounds are %.3f x apart (%.3f)\n",
        by_rate ? "bytes by rates" : "equal bytes", one.mean(), one.largest, several.mean(),
        several.largest, assumed_equal.mean(), assumed_equal.largest, bounds.mean(),
        bounds.largest);
    EXPECT_LT(one.mean(), 1.05);
    EXPECT_LT(several.mean(), 1.1);
    EXPECT_GT(assumed_equal.mean(), one.mean());
    // Where fast devices have no more to do than others, slow ones are busiest in any order.
    if (!by_rate) continue;
    EXPECT_LT(several.mean() - 1, 0.3 * (bounds.mean() - 1));
  }
}

}  // namespace
}  // namespace pagoda
