// The order of an all-to-all's parcels: every byte comes to its device once, devices that send and
// take one part after the other end when the busiest of them must, and by HALO one message goes
// from a device to a node.
#include "plan/rounds/exchange_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/bytes.h"
#include "plan/rounds/exchange_rounds.h"

namespace pagoda {
namespace {

using Kind = ExchangeLeg::Kind;

// Bytes of time until the last part has arrived: a part begins when its sender has sent all parts
// before it, and its receiver has taken them.
int64_t end_of(const std::vector<ExchangeLeg>& legs) {
  std::map<int, int64_t> sends, takes;  // [device] until when
  int64_t end = 0;
  for (const ExchangeLeg& leg : legs) {
    const int64_t ends = std::max(sends[leg.from], takes[leg.to]) + leg.bytes;
    sends[leg.from] = takes[leg.to] = ends;
    end = std::max(end, ends);
  }
  return end;
}

int64_t most_of_a_device(const std::vector<ParcelBytes>& parcels) {
  std::map<int, int64_t> sends, takes;
  int64_t most = 0;
  for (const ParcelBytes& of : parcels) {
    most = std::max({most, sends[of.from] += of.bytes, takes[of.to] += of.bytes});
  }
  return most;
}

// Each parcel's parts go straight to its device, ascend and are the whole of it.
void expect_whole(const std::vector<ParcelBytes>& parcels, const std::vector<ExchangeLeg>& legs) {
  std::vector<int64_t> sent(parcels.size(), 0);
  for (const ExchangeLeg& leg : legs) {
    ASSERT_EQ(leg.kind, Kind::kStraight);
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

// Some of the parcels between all of so many devices, whose numbers are multiples of `distance`.
std::vector<ParcelBytes> random_parcels(std::mt19937& random, int devices, int distance) {
  const int scale = 1 + static_cast<int>(random() % 24);
  std::vector<ParcelBytes> parcels;
  for (int to = 0; to < devices; ++to) {
    for (int from = 0; from < devices; ++from) {
      if (from == to || random() % 4 == 0) continue;
      const auto bytes = 1 + static_cast<int64_t>(random() % (1u << scale));
      parcels.push_back({distance * from, distance * to, bytes});
    }
  }
  return parcels;
}

// All send to device 0 first, which takes one after the other.
TEST(ExchangeOrder, ReceiverByReceiverWaits) {
  const int64_t n = 1 << 20;
  std::vector<ParcelBytes> parcels;
  for (int to = 0; to < 3; ++to) {
    for (int from = 0; from < 3; ++from) {
      if (from != to) parcels.push_back({from, to, n});
    }
  }
  const std::vector<ExchangeLeg> flat = exchange_legs(parcels, ExchangeOrder::kFlat);
  ASSERT_EQ(flat.size(), parcels.size());
  for (size_t i = 0; i < flat.size(); ++i) EXPECT_EQ(flat[i].parcel, i);
  expect_whole(parcels, flat);
  // 1 to 0 and 0 to 1; then 2 to 0 and 0 to 2; then 2 to 1 and 1 to 2.
  EXPECT_EQ(end_of(flat), 3 * n);
  const std::vector<ExchangeLeg> rounds = exchange_legs(parcels, ExchangeOrder::kRounds);
  expect_whole(parcels, rounds);
  EXPECT_EQ(end_of(rounds), 2 * n);
}

TEST(ExchangeOrder, RoundsEndWithTheBusiestDevice) {
  std::mt19937 random(5);
  for (int draw = 0; draw < 300; ++draw) {
    const int devices = 2 + static_cast<int>(random() % 9);
    const std::vector<ParcelBytes> parcels = random_parcels(random, devices, 3);
    const std::vector<ExchangeLeg> legs = exchange_legs(parcels, ExchangeOrder::kRounds);
    expect_whole(parcels, legs);
    const int64_t most = most_of_a_device(parcels);
    // Each of a device's parcels may lack so much of whole units.
    const int64_t unit = std::max(kLeastPartBytes, div_ceil(most, kMostMessageParts)) + 64;
    EXPECT_LE(end_of(legs), most + (devices - 1) * unit) << draw;
    for (const ExchangeLeg& leg : legs) EXPECT_TRUE(leg.ends || leg.bytes >= kLeastPartBytes);
    expect_whole(parcels, exchange_legs(parcels, ExchangeOrder::kFlat));
  }
  EXPECT_TRUE(exchange_legs({}, ExchangeOrder::kRounds).empty());
}

// Nodes of one to three devices: a message carries all that one device has for a node, and each
// parcel comes from it to its device, behind it.
TEST(ExchangeOrder, HaloSendsOneMessageFromADeviceToANode) {
  std::mt19937 random(9);
  for (int draw = 0; draw < 300; ++draw) {
    std::vector<int> node_of;
    const int nodes = 1 + static_cast<int>(random() % 4);
    for (int node = 0; node < nodes; ++node) {
      node_of.insert(node_of.end(), 1 + random() % 3, node);
    }
    const auto devices = static_cast<int>(node_of.size());
    const ExchangeNodes all(node_of);
    const std::vector<ParcelBytes> parcels = random_parcels(random, devices, 1);
    std::vector<int64_t> arrived(parcels.size(), 0);
    std::map<std::pair<int, int>, const ExchangeLeg*> messages;  // [from, node]
    const std::vector<ExchangeLeg> legs = exchange_legs(parcels, ExchangeOrder::kHalo, all);
    for (const ExchangeLeg& leg : legs) {
      const int node = node_of[static_cast<size_t>(leg.to)];
      const bool leaves = node_of[static_cast<size_t>(leg.from)] != node;
      EXPECT_EQ(leaves, leg.kind == Kind::kGathered);
      if (leg.kind == Kind::kGathered) {
        EXPECT_TRUE(messages.emplace(std::pair(leg.from, node), &leg).second);
        EXPECT_EQ(leg.to, all.counterpart(leg.from, node));
        int64_t end = 0;
        for (const ExchangeLeg::Gathered& of : leg.gathered) {
          EXPECT_EQ(of.first_byte, align_up(end, kGatheredAlign));
          end = of.first_byte + parcels[of.parcel].bytes;
        }
        EXPECT_EQ(leg.bytes, end);
        continue;
      }
      const ParcelBytes& parcel = parcels[leg.parcel];
      EXPECT_EQ(leg.to, parcel.to);
      EXPECT_EQ(leg.bytes, parcel.bytes);
      EXPECT_TRUE(leg.ends);
      arrived[leg.parcel] += leg.bytes;
      if (leg.kind == Kind::kStraight) {
        EXPECT_EQ(leg.from, parcel.from);
        EXPECT_EQ(leg.first_byte, 0);
        continue;
      }
      EXPECT_EQ(leg.sender, parcel.from);
      const auto message = messages.find({parcel.from, node});
      ASSERT_NE(message, messages.end());
      EXPECT_EQ(leg.from, message->second->to);
      const auto& gathered = message->second->gathered;
      EXPECT_EQ(std::count_if(gathered.begin(), gathered.end(),
                              [&](const ExchangeLeg::Gathered& of) {
                                return of.parcel == leg.parcel && of.first_byte == leg.first_byte;
                              }),
                1);
    }
    for (size_t i = 0; i < parcels.size(); ++i) EXPECT_EQ(arrived[i], parcels[i].bytes);
  }
}

// Among equal nodes, no device takes from two in any phase if all messages are equally long.
TEST(ExchangeOrder, HaloSendsToDifferentDevicesAtATime) {
  const int nodes = 4, each = 3;
  std::vector<int> node_of;
  for (int node = 0; node < nodes; ++node) node_of.insert(node_of.end(), each, node);
  std::vector<ParcelBytes> parcels;
  for (int to = 0; to < nodes * each; ++to) {
    for (int from = 0; from < nodes * each; ++from) {
      if (from != to) parcels.push_back({from, to, 64});
    }
  }
  std::map<std::pair<Kind, int>, std::vector<int>> order;  // [kind, from] whom it sends to
  const auto legs = exchange_legs(parcels, ExchangeOrder::kHalo, ExchangeNodes(node_of));
  for (const ExchangeLeg& leg : legs) order[{leg.kind, leg.from}].push_back(leg.to);
  for (const auto& [kind, turns] :
       {std::pair(Kind::kGathered, nodes - 1), std::pair(Kind::kStraight, each - 1),
        std::pair(Kind::kPassedOn, (nodes - 1) * each)}) {
    for (int turn = 0; turn < turns; ++turn) {
      std::set<int> taking;
      for (int from = 0; from < nodes * each; ++from) {
        const std::vector<int>& to = order[{kind, from}];
        ASSERT_EQ(std::ssize(to), turns);
        EXPECT_TRUE(taking.insert(to[static_cast<size_t>(turn)]).second);
      }
    }
  }
}

}  // namespace
}  // namespace pagoda
