// The ranking of meshes against trying all degrees and microbatches without pruning; what it says
// when nothing fits; Piper's advice on a cluster whose nodes are far apart.
#include "plan/ranked_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "base/bytes.h"

namespace pagoda {
namespace {

constexpr DeviceRates kRates{.peak_flops_per_s = 312e12,
                             .token_flops_per_s = 150e12,
                             .expert_flops_per_s = 120e12};

ClusterProfile cluster_of(int64_t nodes, int64_t per_node, int64_t per_switch,
                          int64_t device_bytes) {
  ClusterProfile cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = per_node;
  cluster.nodes_per_switch = per_switch;
  cluster.device_bytes = device_bytes;
  cluster.in_node = {2e-6, 1.0 / 50e9};
  cluster.in_switch = {5e-6, 1.0 / 12e9};
  cluster.between_switches = {9e-6, 1.0 / 3e9};
  return cluster;
}

// Powers of two, so that every group has its place in the nodes.
TEST(RankedMeshes, AreAllThatFitBestFirst) {
  int found = 0, none = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto power = [&](uint32_t most) { return int64_t{1} << (random() % most); };
    const int64_t layers = static_cast<int64_t>(1 + random() % 8), experts = power(5);
    const ModelCost model =
        piper_cost({layers, 64, 4, experts, 1 + (experts > 1 ? 1 : 0), 128}).take();
    const ClusterProfile cluster =
        cluster_of(power(3), power(3), power(3), static_cast<int64_t>(random() % (6 << 20)));
    const StepDemand demand{64, power(6)};
    double best = std::numeric_limits<double>::infinity();
    size_t fit = 0;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int64_t pp = 1; pp <= cluster.devices(); ++pp) {
      for (int64_t ep = 1; pp * ep <= cluster.devices(); ++ep) {
        const Mesh mesh{pp, ep, cluster.devices() / pp / ep};
        if (!check_mesh(mesh, cluster, layers, experts).ok()) continue;
        for (int64_t m = 1; m <= demand.sequences; ++m) {
          for (int64_t b = 1; b * m <= demand.sequences; ++b) {
            if (b * m * ep * mesh.data != demand.sequences) continue;
            const PipelineBatch batch{64, b, m, SequencesOf::kRank};
            bool fits = true;
            int64_t most = 0;
            for (int64_t i = 0; i < pp; ++i) {
              const int64_t bytes = stage_memory(model, mesh, batch, {}, i).take().peak_bytes();
              fits = fits && bytes <= cluster.device_bytes;
              most = std::max(most, bytes);
            }
            least = std::min(least, most);
            if (!fits) continue;
            ++fit;
            const StepEstimate step = estimate_step(model, mesh, batch, cluster, kRates).take();
            best = std::min(best, step.times.step_s());
          }
        }
      }
    }
    const auto ranked = ranked_meshes(model, cluster, kRates, {}, demand);
    ASSERT_EQ(ranked.ok(), fit > 0) << ranked.status().message();
    if (fit == 0) {
      ++none;
      const bool divided = least < std::numeric_limits<int64_t>::max();
      EXPECT_EQ(ranked.status().code(), divided ? Exit::kDoesNotFit : Exit::kUsage);
      EXPECT_EQ(ranked.status().message().find('\n'), std::string::npos);
      if (divided) {
        EXPECT_NE(ranked.status().message().find(format_bytes_up(least)), std::string::npos);
      }
      continue;
    }
    ++found;
    ASSERT_EQ(ranked.value().size(), fit);
    EXPECT_EQ(ranked.value()[0].estimate.times.step_s(), best);
    double last_mfu = 1;
    for (const RankedMesh& way : ranked.value()) {
      // The same step, so that less time is more MFU; one rounding apart.
      EXPECT_LE(way.estimate.mfu, last_mfu * (1 + 1e-12));
      last_mfu = way.estimate.mfu;
      EXPECT_LE(way.fullest.peak_bytes, cluster.device_bytes);
      EXPECT_EQ(way.estimate.tokens, 64.0 * static_cast<double>(demand.sequences));
    }
  }
  std::printf("%d cases with a mesh, %d without\n", found, none);
  EXPECT_GT(found, 10);
  EXPECT_GT(none, 3);
}

// Qwen3-30B-A3B's sizes on 8 nodes of 8: experts stay inside a node, stages and copies go across.
TEST(RankedMeshes, KeepExpertsInsideANode) {
  const ModelCost model = piper_cost({48, 2048, 16, 128, 8, 768}).take();
  const ClusterProfile cluster = cluster_of(8, 8, 4, 64 * kGiB);
  const auto ranked = ranked_meshes(model, cluster, kRates, {}, {4096, 1024}).take();
  for (size_t i = 0; i < ranked.size() && i < 6; ++i) {
    const RankedMesh& way = ranked[i];
    std::printf("PP %2lld x EP %2lld x DP %2lld, %3lld microbatches of %lld: %6.2f s, "
                "MFU %4.1f %%, %5.1f GiB\n",
                (long long)way.mesh.pipeline, (long long)way.mesh.expert, (long long)way.mesh.data,
                (long long)way.batch.microbatches, (long long)way.batch.microbatch_sequences,
                way.estimate.times.step_s(), 100 * way.estimate.mfu,
                static_cast<double>(way.fullest.peak_bytes) / static_cast<double>(kGiB));
  }
  EXPECT_LE(ranked[0].mesh.expert, 8);
  for (const RankedMesh& way : ranked) {
    if (way.mesh.expert <= 8) continue;
    EXPECT_GT(way.estimate.times.communication_s, ranked[0].estimate.times.communication_s);
  }
}

TEST(RankedMeshes, RefuseNonsense) {
  const ModelCost model = piper_cost({4, 64, 4, 8, 2, 128}).take();
  const ClusterProfile cluster = cluster_of(2, 2, 2, kGiB);
  EXPECT_TRUE(ranked_meshes(model, cluster, kRates, {}, {64, 8}).ok());
  EXPECT_EQ(ranked_meshes(model, cluster, kRates, {}, {0, 8}).status().code(), Exit::kUsage);
  EXPECT_EQ(ranked_meshes(model, cluster, kRates, {}, {64, 0}).status().code(), Exit::kUsage);
  ClusterProfile broken = cluster;
  broken.in_node.unit_s = -1;
  EXPECT_EQ(ranked_meshes(model, broken, kRates, {}, {64, 8}).status().code(), Exit::kUsage);
  DeviceRates still = kRates;
  still.expert_flops_per_s = 0;
  EXPECT_EQ(ranked_meshes(model, cluster, still, {}, {64, 8}).status().code(), Exit::kUsage);
  EXPECT_EQ(ranked_meshes({}, cluster, kRates, {}, {64, 8}).status().code(), Exit::kUsage);
}

}  // namespace
}  // namespace pagoda
