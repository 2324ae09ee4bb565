// The order in which a cluster's nodes become ranks, and its hostfile.
#include "preview/rank_order.h"

#include <gtest/gtest.h>

#include "cli/sheet_file.h"
#include "tests/preview/published_configs.h"

namespace pagoda {
namespace {

// Five nodes under three switches: the switch with the fastest node comes first, among equals as
// listed, and in it the fastest.
TEST(RankOrder, FastNodesComeFirstAndSwitchesStayTogether) {
  ClusterSheet cluster;
  cluster.network.gb_s = 40;
  cluster.nodes.assign(5, machine("gpu-8x80gb"));
  const double speeds[] = {10, 20, 30, 5, 30};
  for (size_t n = 0; n < 5; ++n) {
    cluster.nodes[n].device.attention_tflops = speeds[n];
    cluster.cluster.hosts.push_back(strf("host%zu", n));
  }
  cluster.cluster.nodes_per_switch = 2;
  EXPECT_EQ(rank_order(cluster), (std::vector<size_t>{2, 3, 4, 1, 0}));
  const ClusterSheet ordered = in_rank_order(cluster);
  EXPECT_EQ(ordered.nodes[1].device.attention_tflops, 5);
  EXPECT_EQ(hostfile(ordered),
            (std::vector<std::string>{"host2 slots=1", "host3 slots=1", "host4 slots=1",
                                      "host1 slots=1", "host0 slots=1"}));
  cluster.cluster.nodes_per_switch = 0;  // all under one
  EXPECT_EQ(rank_order(cluster), (std::vector<size_t>{2, 4, 1, 0, 3}));
  cluster.cluster.hosts.pop_back();
  EXPECT_EQ(cluster.check().code(), Exit::kUsage);
  cluster.cluster.hosts.clear();
  EXPECT_TRUE(cluster.check().ok());
  // Without names, by their places in the sheet.
  EXPECT_EQ(hostfile(in_rank_order(cluster)),
            (std::vector<std::string>{"node2 slots=1", "node4 slots=1", "node1 slots=1",
                                      "node0 slots=1", "node3 slots=1"}));
}

}  // namespace
}  // namespace pagoda
