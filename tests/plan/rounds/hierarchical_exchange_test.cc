// The messages of an all-to-all carried out: every row arrives, whichever kind; what a device sends
// between nodes, and what it costs, against closed forms.
#include "tests/testing/plan/hierarchical_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace pagoda {
namespace {

constexpr ExchangeKind kFlat = ExchangeKind::kFlat;
constexpr ExchangeKind kHierarchical = ExchangeKind::kHierarchical;

ClusterProfile cluster_of(int64_t nodes, int64_t per_node, int64_t per_switch = 1) {
  ClusterProfile cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = per_node;
  cluster.nodes_per_switch = per_switch;
  cluster.in_node = {1e-6, 1.0 / 64e9};
  cluster.in_switch = {4e-6, 1.0 / 16e9};
  cluster.between_switches = {9e-6, 1.0 / 4e9};
  return cluster;
}

using Row = std::pair<int64_t, int64_t>;  // source, destination
using Rows = std::set<Row>;

// The rows of a message, as the header says: those at the sender whose destination is the receiver,
// in phase 2 of three phases those for any device of its node.
Rows carried(const ClusterProfile& cluster, ExchangeKind kind, const ExchangeMessage& message,
             const Rows& at_sender) {
  Rows rows;
  for (const Row& row : at_sender) {
    const bool whole_node = kind == kHierarchical && message.phase == 2;
    const bool meant = whole_node ? cluster.node(row.second) == cluster.node(message.to)
                                  : row.second == message.to;
    if (meant) rows.insert(row);
  }
  return rows;
}

// Phases 1 and 2 start with what a device has; phase 3 with what phase 2 brought it.
void expect_all_arrive(const ClusterProfile& cluster, ExchangeKind kind) {
  const int64_t devices = cluster.devices();
  std::vector<Rows> own(static_cast<size_t>(devices)), relayed(own), arrived(own);
  for (int64_t from = 0; from < devices; ++from) {
    for (int64_t to = 0; to < devices; ++to) {
      if (from != to) own[static_cast<size_t>(from)].insert({from, to});
    }
  }
  for (int phase = 1; phase <= 3; ++phase) {
    for (int64_t device = 0; device < devices; ++device) {
      for (const ExchangeMessage& message : exchange_messages(cluster, kind, device)) {
        ASSERT_TRUE(message.phase >= 1 && message.phase <= 3);
        if (message.phase != phase) continue;
        ASSERT_NE(message.to, device);
        EXPECT_EQ(cluster.node(message.to) == cluster.node(device), phase != 2);
        auto& from = (phase == 3 ? relayed : own)[static_cast<size_t>(device)];
        const Rows rows = carried(cluster, kind, message, from);
        EXPECT_EQ(static_cast<int64_t>(rows.size()), message.rows);
        for (const Row& row : rows) {
          from.erase(row);
          const bool there = row.second == message.to;
          (there ? arrived : relayed)[static_cast<size_t>(message.to)].insert(row);
        }
      }
    }
  }
  for (int64_t device = 0; device < devices; ++device) {
    const auto d = static_cast<size_t>(device);
    EXPECT_EQ(arrived[d].size(), static_cast<size_t>(devices - 1));
    EXPECT_TRUE(own[d].empty() && relayed[d].empty());
  }
}

TEST(Exchange, BringsEveryRowToItsDevice) {
  for (int64_t nodes = 1; nodes <= 5; ++nodes) {
    for (int64_t per_node = 1; per_node <= 5; ++per_node) {
      SCOPED_TRACE(testing::Message() << nodes << " nodes of " << per_node);
      expect_all_arrive(cluster_of(nodes, per_node), kFlat);
      expect_all_arrive(cluster_of(nodes, per_node), kHierarchical);
    }
  }
}

// At each position of the list, every device sends to another one.
TEST(Exchange, HasNoTwoSendersForOneReceiver) {
  for (const ExchangeKind kind : {kFlat, kHierarchical}) {
    const ClusterProfile cluster = cluster_of(4, 3);
    const size_t count = exchange_messages(cluster, kind, 0).size();
    for (size_t turn = 0; turn < count; ++turn) {
      std::set<int64_t> receivers;
      for (int64_t device = 0; device < cluster.devices(); ++device) {
        const auto messages = exchange_messages(cluster, kind, device);
        ASSERT_EQ(messages.size(), count);
        receivers.insert(messages[turn].to);
      }
      EXPECT_EQ(static_cast<int64_t>(receivers.size()), cluster.devices()) << "turn " << turn;
    }
  }
}

// Doubles of sums in another order: relative 1e-12, some thousand roundings of 2^-53.
void expect_close(double a, double b) { EXPECT_NEAR(a, b, 1e-12 * std::max(a, b)); }

TEST(Exchange, OfTwoLevelsCostsWhatTheClosedFormsSay) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto n = static_cast<int64_t>(1 + random() % 9);
    const auto r = static_cast<int64_t>(1 + random() % 9);
    ClusterProfile cluster = cluster_of(n, r, n);  // all nodes under one switch
    const double row = 1 + static_cast<double>(random() % 1000000);
    const double N = static_cast<double>(n), R = static_cast<double>(r);
    const Cost &in = cluster.in_node, &out = cluster.in_switch;
    const ExchangeCost flat = exchange_cost(cluster, kFlat, row).take();
    EXPECT_EQ(flat.messages_between_nodes, (n - 1) * r);
    expect_close(flat.inside_s, (R - 1) * in.seconds(row));
    expect_close(flat.between_s, (N - 1) * R * out.seconds(row));
    EXPECT_EQ(flat.onward_s, 0);
    EXPECT_EQ(flat.total_s, std::max(flat.inside_s, flat.between_s));
    const ExchangeCost three = exchange_cost(cluster, kHierarchical, row).take();
    EXPECT_EQ(three.messages_between_nodes, n - 1);
    EXPECT_EQ(three.bytes_between_nodes, flat.bytes_between_nodes);
    expect_close(three.inside_s, (R - 1) * in.seconds(row));
    expect_close(three.between_s, (N - 1) * out.seconds(R * row));
    expect_close(three.onward_s, n > 1 ? (R - 1) * in.seconds((N - 1) * row) : 0);
    EXPECT_EQ(three.total_s, std::max(three.inside_s, three.between_s) + three.onward_s);
    const ExchangeChoice choice = cheaper_exchange(cluster, row).take();
    EXPECT_EQ(choice.cost.total_s, std::min(flat.total_s, three.total_s));
    EXPECT_EQ(choice.kind == kHierarchical, three.total_s < flat.total_s);
  }
}

TEST(Exchange, OfThreeLevelsUsesEachLinkForItsNodes) {
  const int64_t n = 12, r = 4, h = 3;
  const ClusterProfile cluster = cluster_of(n, r, h);
  const double row = 1000;
  const double near = h - 1, far = n - h, R = r;
  const ExchangeCost flat = exchange_cost(cluster, kFlat, row).take();
  expect_close(flat.between_s, near * R * cluster.in_switch.seconds(row) +
                                   far * R * cluster.between_switches.seconds(row));
  const ExchangeCost three = exchange_cost(cluster, kHierarchical, row).take();
  expect_close(three.between_s, near * cluster.in_switch.seconds(R * row) +
                                    far * cluster.between_switches.seconds(R * row));
  // A last switch with fewer nodes: its devices have the farthest to send.
  const ClusterProfile uneven = cluster_of(7, r, h);
  expect_close(exchange_cost(uneven, kFlat, row).take().between_s,
               6 * R * uneven.between_switches.seconds(row));
}

// Latency is what three phases save, bytes inside the node what they cost: the shape of Figure 8
// turned round, small rows and many nodes gain most.
TEST(Exchange, GainsWithSmallRowsAndManyNodes) {
  std::printf("flat / three phases, 8 devices a node, 4 nodes a switch\n  row bytes");
  const std::vector<int64_t> node_counts = {2, 4, 8, 16, 32, 64};
  for (const int64_t nodes : node_counts) std::printf(" %5lld n", (long long)nodes);
  double smallest_rows = 0, largest_rows = 0;
  for (double row = 64; row <= 64 << 20; row *= 32) {
    std::printf("\n%11.0f", row);
    double last = 0;
    for (const int64_t nodes : node_counts) {
      const ClusterProfile cluster = cluster_of(nodes, 8, 4);
      const double flat = exchange_cost(cluster, kFlat, row).take().total_s;
      last = flat / exchange_cost(cluster, kHierarchical, row).take().total_s;
      std::printf(" %7.2f", last);
    }
    if (row == 64) smallest_rows = last;
    largest_rows = last;
  }
  std::printf("\n");
  EXPECT_GT(smallest_rows, 1);
  EXPECT_LT(largest_rows, 1);
}

TEST(Exchange, RefusesNonsense) {
  const auto refuse = [](double row, auto change) {
    ClusterProfile cluster = cluster_of(2, 2, 2);
    change(cluster);
    for (const ExchangeKind kind : {kFlat, kHierarchical}) {
      const Status status = exchange_cost(cluster, kind, row).status();
      EXPECT_EQ(status.code(), Exit::kUsage);
      EXPECT_EQ(status.message().find('\n'), std::string::npos);
    }
    EXPECT_FALSE(cheaper_exchange(cluster, row).ok());
  };
  const auto nothing = [](ClusterProfile&) {};
  EXPECT_TRUE(exchange_cost(cluster_of(2, 2, 2), kFlat, 1).ok());
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    refuse(bad, nothing);
    refuse(1, [&](ClusterProfile& c) { c.in_node.unit_s = bad; });
    refuse(1, [&](ClusterProfile& c) { c.in_switch.unit_s = bad; });
    refuse(1, [&](ClusterProfile& c) { c.between_switches.unit_s = bad; });
  }
  refuse(1, [](ClusterProfile& c) { c.in_node.fixed_s = -1; });
  refuse(1, [](ClusterProfile& c) { c.nodes = 0; });
  refuse(1, [](ClusterProfile& c) { c.devices_per_node = -2; });
  refuse(1, [](ClusterProfile& c) { c.nodes_per_switch = 0; });
}

}  // namespace
}  // namespace pagoda
