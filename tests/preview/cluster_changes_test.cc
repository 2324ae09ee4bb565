// Changes of a cluster, or of the tokens of a step, that make a run fit or faster, by planners
// whose answers are known.
#include "preview/cluster_changes.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "tests/preview/published_configs.h"

namespace pagoda {
namespace {

// Nodes of two kinds.
ClusterSheet two_nodes() {
  ClusterSheet cluster;
  cluster.network.gb_s = 6;
  cluster.nodes = {machine("gpu-2xa40"), machine("gpu-2xv100")};
  return cluster;
}

// A planner that fits from four nodes on, or with a fourth of the tokens.
TEST(ClusterChanges, SayTheSmallestThatFit) {
  const ClusterSheet sheet = two_nodes();
  const ClusterPlanner planner = [&](const ClusterSheet& where,
                                     const ClusterDemand& demand) -> std::optional<PlannedCluster> {
    if (where.nodes.size() < 4 && demand.sequences > 16) return {};
    return PlannedCluster{strf("%zu nodes", where.nodes.size()), 1.0};
  };
  const auto fitting = cluster_fits_with(planner, sheet, {4096, 64});
  ASSERT_EQ(fitting.size(), 2u);
  EXPECT_EQ(fitting[0].text, "train.tokens_per_step = 65536");
  EXPECT_EQ(fitting[1].text, "4 such nodes");
  EXPECT_EQ(fitting[1].layout, "4 nodes");
}

// A planner whose rate is that of the network, plus a hundredth for each other change.
TEST(ClusterChanges, SayWhatGainsAFiftieth) {
  const ClusterSheet sheet = two_nodes();
  const ClusterPlanner planner = [&](const ClusterSheet& where,
                                     const ClusterDemand& demand) -> std::optional<PlannedCluster> {
    double rate = 100 * where.network.gb_s / sheet.network.gb_s;
    if (demand.sequences > 64) rate += 1;
    if (where.nodes.size() > sheet.nodes.size()) rate += 30;
    return PlannedCluster{"", rate};
  };
  const auto helps = cluster_helps(planner, sheet, {4096, 64}, 100);
  ASSERT_EQ(helps.size(), 2u);
  EXPECT_EQ(helps[0].text, "twice the rate of the network");
  EXPECT_NEAR(helps[0].gain, 1.0, 1e-12);
  EXPECT_EQ(helps[1].text, "4 such nodes");
  EXPECT_NEAR(helps[1].gain, 0.3, 1e-12);
}

}  // namespace
}  // namespace pagoda
