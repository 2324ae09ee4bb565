// Searches of strategies for two kinds of nodes: the one found is the best of all that are tried
// one by one here; and what is refused.
#include "plan/search/cluster_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "base/bytes.h"
#include "cli/sheet_file.h"
#include "plan/search/cluster_changes.h"
#include "plan/search/node_pair.h"
#include "plan/search/node_pair_search.h"
#include "plan/search/shared_step.h"
#include "plan/search/zebra_search.h"
#include "plan/zebra/asym_ea.h"
#include "preview/model_sizes.h"

namespace pagoda {
namespace {

std::string configs(const std::string& name) {
  return std::string(PAGODA_GOLDEN_DIR) + "/../../configs/" + name;
}

ModelShape published(const std::string& name) {
  return read_model_sizes(configs("models/" + name + ".json"))->shape;
}

ClusterSheet cluster(const std::string& name) {
  return read_cluster_sheet(configs("clusters/" + name + ".toml")).take();
}

// The best of all strategies to spread the work of two kinds of devices where there is room for
// everything, simulated one by one, each zebra layout with all that Asym-EA finds for it.
double best_of_node_pair(const ModelShape& model, const ClusterSheet& sheet,
                         const ClusterDemand& demand) {
  const NodePair kinds = node_pair(sheet).take();
  double best = std::numeric_limits<double>::infinity();
  for (const int32_t copies : {1, 2}) {
    const HeterogeneousStep step = copied_step(model, sheet, kinds, demand, copies).step;
    best = std::min(best, best_expert_parallel(step, 8)->step_s);
    best = std::min(best, best_disaggregated(step, 8)->step_s);
  }
  for (const auto sharing : {ExpertSharing::kDataCentric, ExpertSharing::kModelCentric}) {
    best = std::min(best, shared_step(model, sheet, kinds, demand, sharing)->step_s());
  }
  const HeterogeneousStep step = heterogeneous_step(model, sheet, kinds, demand);
  for (int32_t m = 1; m <= 32; m *= 2) {
    if (demand.sequences % (2 * m) != 0) continue;
    if (const auto p = pipeline_step(step, m); p.ok()) best = std::min(best, p.value().step_s);
  }
  for (const ZebraLayout& layout : zebra_layouts(model, kinds, demand)) {
    const ZebraPipeline pipeline = zebra_pipeline(model, sheet, kinds, demand, layout).take();
    const std::vector<AsymBounds> bounds(pipeline.stages.size());
    const std::vector<int32_t> start = gather_and_squeeze(pipeline, bounds).take();
    best = std::min(best, plan_asym_ea(pipeline, bounds, 1 << 20, start)->step_s);
  }
  return best;
}

TEST(ClusterSearch, FindsTheBestOfANodePair) {
  ModelShape model = published("olmoe-1b-7b");
  const ClusterSheet sheet = cluster("a40-v100");
  model.is_moe.resize(4);
  const ClusterDemand demand{2048, 16};
  auto strategies = search_cluster(model, sheet, demand);
  ASSERT_TRUE(strategies.ok()) << strategies.status().message();
  const NodePair kinds = node_pair(sheet).take();
  EXPECT_EQ(kinds.faster->machine.name, "2 A40");
  EXPECT_EQ(kinds.faster_devices, 2);
  EXPECT_EQ(kinds.slower_devices, 2);
  // With room for everything.
  ClusterSheet roomy = sheet;
  for (MachineSheet& node : roomy.nodes) {
    node.device.memory = MemorySize::of_bytes(int64_t{4} << 40);
    node.device.memory_gb_s = 1e9;  // updates take next to nothing
    node.device.launch_us = 0;
  }
  for (const double gb_s : {sheet.network.gb_s, 60.0}) {
    roomy.network.gb_s = gb_s;
    const double best = best_of_node_pair(model, roomy, demand);
    auto unbounded = search_cluster(model, roomy, demand);
    ASSERT_TRUE(unbounded.ok());
    // The search begins at other places than Algorithm 1, too, and may find better.
    EXPECT_LE(unbounded->front().step_s, best * (1 + 1e-6)) << unbounded->front().text();
    EXPECT_GE(unbounded->front().step_s, best * 0.95) << unbounded->front().text();
    std::printf("two kinds, links of %g GB/s: best %.3f s, %s\n", gb_s, best,
                unbounded->front().text().c_str());
  }
  std::printf("with memory as it is %.3f s, %s\n", strategies->front().step_s,
              strategies->front().text().c_str());
}

// What two kinds of nodes take for a layer and the tokens of a step, counted by hand: everything is
// computed again in the backward.
TEST(ClusterSearch, CountsTheWorkOfTwoKindsByHand) {
  ModelShape model = published("olmoe-1b-7b");
  const ClusterSheet sheet = cluster("a40-v100");
  const ClusterDemand demand{2048, 48};
  const HeterogeneousStep work = heterogeneous_step(model, sheet, node_pair(sheet).take(), demand);
  const double d = 2048, f = 1024, experts = 64, k = 8, s = 2048, tokens = 48 * s, vocab = 50304;
  const double projections = 4 * d * d + 2 * d;  // with norms of queries and keys
  const double router = experts * d, matrix = d * f;
  const double score_product = 2 * d * (s + 1) / 2;
  struct Kind {
    const DeviceKind& of;
    double gemm, scores, memory;
  };
  for (const Kind& kind :
       {Kind{work.faster, 112e12, 75e12, 620e9}, Kind{work.slower, 75e12, 25e12, 800e9}}) {
    const auto seconds = [&](double flops, double scores, double bytes) {
      return tokens *
             (flops / kind.gemm + scores / (kind.scores * s / (s + 256)) + bytes / kind.memory);
    };
    const auto near = [](double a, double b) { EXPECT_NEAR(a, b, 1e-9 * b); };
    // Attention, router, residual, choices, and what puts rows in order and sums them. Each expert
    // has 12,288 rows, three groups and four copies each way. With a row each they are four groups,
    // and 4 + 4 / 4,096 copies; only what is beyond that is for tokens.
    const double attention_bytes = 2 * (4 * d + 3 * 2 * d);
    const double least_copies = 4 + 4.0 / 4096;
    const double copies_s = 2 * (4 * 64 - least_copies) * 5e-6;
    near(kind.of.attention.forward_s,
         seconds(2 * (projections + router), 2 * score_product,
                 attention_bytes + 12 * d + 8 * d + k * 16 + k * (4 * d + 10 * d)) +
             copies_s);
    near(kind.of.attention.backward_s,
         seconds(6 * (projections + router), 7 * score_product,
                 3 * attention_bytes + 36 * d + k * 16 + k * (8 * d + 10 * d)) +
             copies_s);
    near(kind.of.attention_once.forward_s,
         2 * (projections + router) / kind.memory + (4 + 2 * least_copies) * 5e-6);
    // Rows of experts beyond a group of 4,096 of each read the weights once more.
    const double groups = tokens * k / 4096;
    const double read_s = 2 * 3 * matrix / kind.memory;
    near(kind.of.experts.forward_s, seconds(k * 2 * 3 * matrix, 0, k * 2 * (2 * d + 3 * f)) +
                                        (groups - 64) * read_s + (groups - 4) * 5e-6);
    near(kind.of.experts_once.forward_s, 64 * read_s + 4 * 5e-6);
    const double back_read_s = (2 * 6 + 8 * 3) * matrix / kind.memory;
    near(kind.of.experts.backward_s, seconds(k * 2 * 8 * matrix, 0, k * 2 * (4 * d + 5 * f)) +
                                         (groups - 64) * back_read_s + (groups - 4) * 5e-6);
    near(kind.of.head_s, seconds(6 * vocab * d, 0, 12 * vocab + 4 * d + 8 * d));
  }
  // A row for each of a token's eight experts.
  EXPECT_EQ(work.exchange_bytes, tokens * 8 * 2 * d);
  EXPECT_EQ(work.boundary_bytes, tokens * 2 * d);
  EXPECT_EQ(work.link_bytes_per_s, 6e9);
}

// Shares by speed: with links that take no time a data-centric step is what the slowest device
// computes of its own sequences, with the head; a model-centric one attention by sequences and
// experts by columns, each of the slowest. With slow links the one that moves less is faster.
TEST(ClusterSearch, SharesExpertsBySpeed) {
  ModelShape model = published("olmoe-1b-7b");
  ClusterSheet sheet = cluster("a40-v100");
  model.is_moe.resize(4);
  sheet.network = {1e9, 0, 0, 0};
  for (MachineSheet& node : sheet.nodes) {
    node.device.weight_gb_s = 1e9;  // what comes once a microbatch takes next to nothing
    node.device.launch_us = 0;
  }
  const NodePair kinds = node_pair(sheet).take();
  const ClusterDemand demand{2048, 48};
  const HeterogeneousStep work = heterogeneous_step(model, sheet, kinds, demand);
  const auto slower_of = [](const PassSeconds& a, const PassSeconds& b) {
    return PassSeconds{std::max(a.forward_s, b.forward_s), std::max(a.backward_s, b.backward_s)};
  };
  double data_s = 0, attention_s = 0, experts_s = 0, head_s = 0;
  PassSeconds attention, experts;  // the slowest in each direction
  const auto data = shared_step(model, sheet, kinds, demand, ExpertSharing::kDataCentric).take();
  const auto columns =
      shared_step(model, sheet, kinds, demand, ExpertSharing::kModelCentric).take();
  EXPECT_GT(data.faster.sequences, data.slower.sequences);
  EXPECT_GT(columns.faster.hidden, columns.slower.hidden);
  for (const bool faster : {true, false}) {
    const DeviceKind& kind = faster ? work.faster : work.slower;
    const double own = static_cast<double>((faster ? data.faster : data.slower).sequences) / 48;
    data_s = std::max(data_s, own * (4 * (kind.attention + kind.experts).both_s() + kind.head_s));
    const KindShare& share = faster ? columns.faster : columns.slower;
    const double batch = static_cast<double>(share.sequences) / 48;
    const PassSeconds own_attention = kind.attention * (4 * batch);
    const PassSeconds own_experts = kind.experts * 4 * static_cast<double>(share.hidden) /
                                    static_cast<double>(model.expert_ffn);
    attention_s = std::max(attention_s, own_attention.both_s());
    experts_s = std::max(experts_s, own_experts.both_s());
    attention = slower_of(attention, own_attention);
    experts = slower_of(experts, own_experts);
    head_s = std::max(head_s, batch * kind.head_s);
  }
  EXPECT_NEAR(data.step_s(), data_s, 1e-6 * data_s);
  // Kinds wait for each other at every exchange: at least the slowest of each, at most their sum
  // over both directions.
  EXPECT_GE(columns.step_s(), (1 - 1e-6) * (attention_s + experts_s));
  EXPECT_LE(columns.step_s(), (1 + 1e-6) * ((attention + experts).both_s() + head_s));
  // Links that take nearly all of the step: many tokens make rows dearer than weights.
  sheet.network.gb_s = 0.1;
  const auto step_s = [&](const ClusterDemand& d, ExpertSharing sharing) {
    return shared_step(model, sheet, kinds, d, sharing)->step_s();
  };
  EXPECT_LT(step_s({2048, 480}, ExpertSharing::kDataCentric),
            step_s({2048, 480}, ExpertSharing::kModelCentric));
  EXPECT_GT(step_s({128, 48}, ExpertSharing::kDataCentric),
            step_s({128, 48}, ExpertSharing::kModelCentric));
}

// What is drawn of a strategy is what it was ranked by: pieces of a lane one after the other, the
// same end, and as many bytes at most.
void expect_drawn(const ModelShape& model, const ClusterSheet& sheet, const ClusterDemand& demand,
                  const Strategy& strategy) {
  SCOPED_TRACE(strategy.text());
  const auto timeline = node_pair_timeline(model, sheet, demand, strategy);
  ASSERT_TRUE(timeline.ok()) << timeline.status().message();
  EXPECT_NEAR(timeline.value().end_s, strategy.step_s, 1e-12 * strategy.step_s);
  double end_s = 0;
  ASSERT_FALSE(timeline.value().lanes.empty());
  for (const StrategyLane& lane : timeline.value().lanes) {
    double before_s = 0;
    EXPECT_FALSE(lane.pieces.empty()) << lane.name;
    for (const StrategyPiece& piece : lane.pieces) {
      EXPECT_GE(piece.start_s, before_s) << lane.name;
      EXPECT_GE(piece.end_s, piece.start_s) << lane.name;
      before_s = piece.end_s;
    }
    end_s = std::max(end_s, before_s);
  }
  EXPECT_NEAR(end_s, strategy.step_s, 1e-9 * strategy.step_s);
  int64_t most = 0;
  for (const StrategyMemory& memory : timeline.value().memory) {
    double before_s = 0;
    for (const auto& [at_s, bytes] : memory.held) {
      EXPECT_GE(at_s, before_s) << memory.name;
      EXPECT_LE(bytes, memory.budget_bytes) << memory.name;
      before_s = at_s;
      most = std::max(most, bytes);
    }
  }
  // A byte for rounding. Zebra reserves all inputs of a step, which need not all be there at once.
  EXPECT_LE(most, strategy.device_bytes + 1);
  if (strategy.kind != StrategyKind::kZebra) {
    EXPECT_EQ(most, strategy.device_bytes);
  }
}

TEST(ClusterSearch, DrawsWhatItRanked) {
  ModelShape olmoe = published("olmoe-1b-7b");
  olmoe.is_moe.resize(8);
  const ClusterSheet unequal = cluster("a40-v100");
  const ClusterDemand small{2048, 16};
  bool seen[5] = {};
  const std::vector<Strategy> of_two = search_cluster(olmoe, unequal, small).take();
  for (const Strategy& strategy : of_two) {
    seen[static_cast<size_t>(strategy.kind)] = true;
    expect_drawn(olmoe, unequal, small, strategy);
  }
  EXPECT_TRUE(seen[static_cast<size_t>(StrategyKind::kZebra)]);
}

TEST(ClusterSearch, RefusesNonsense) {
  const ModelShape model = published("olmoe-1b-7b");
  const ClusterSheet sheet = cluster("a40-v100");
  EXPECT_EQ(search_cluster(model, sheet, {4096, 0}).status().code(), Exit::kUsage);
  EXPECT_EQ(search_cluster(model, sheet, {0, 32}).status().code(), Exit::kUsage);
  ClusterSheet bad = sheet;
  bad.network.gb_s = 0;
  EXPECT_EQ(search_cluster(model, bad, {4096, 32}).status().code(), Exit::kUsage);
  ClusterSheet three = sheet;
  three.nodes.push_back(cluster("4x8-gpu-80gb").nodes[0]);
  EXPECT_EQ(search_cluster(model, three, {4096, 32}).status().code(), Exit::kUsage);
  ClusterSheet none = sheet;
  none.nodes.clear();
  EXPECT_EQ(search_cluster(model, none, {4096, 32}).status().code(), Exit::kUsage);
  EXPECT_EQ(search_cluster(model, cluster("4x8-gpu-80gb"), {4096, 32}).status().code(),
            Exit::kUsage);
}

// A planner that fits from four nodes on, or with a fourth of the tokens.
TEST(ClusterChanges, SayTheSmallestThatFit) {
  const ClusterSheet sheet = cluster("a40-v100");
  const size_t nodes = sheet.nodes.size();
  ASSERT_EQ(nodes, 2u);
  const ClusterPlanner planner = [&](const ClusterSheet& where,
                                     const ClusterDemand& demand) -> std::optional<PlannedCluster> {
    if (where.nodes.size() < 4 && demand.sequences > 16) return {};
    return PlannedCluster{strf("%zu nodes", where.nodes.size()), 1.0};
  };
  const auto fitting = cluster_fits_with(planner, sheet, {4096, 64});
  ASSERT_EQ(fitting.size(), 2u);
  EXPECT_EQ(fitting[0].text, "train.tokens_per_step = 65536");
  EXPECT_EQ(fitting[1].text, "4 such nodes");
  EXPECT_EQ(fitting[1].strategy, "4 nodes");
}

// A planner whose rate is that of the network, plus a hundredth for each other change.
TEST(ClusterChanges, SayWhatGainsAFiftieth) {
  const ClusterSheet sheet = cluster("a40-v100");
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

// A search of strategies plans by the best of them.
TEST(ClusterChanges, OfStrategiesAreTheirBest) {
  ModelShape model = published("olmoe-1b-7b");
  model.is_moe.resize(4);
  const ClusterSheet sheet = cluster("a40-v100");
  const ClusterDemand demand{2048, 16};
  const auto planned = strategy_planner(model)(sheet, demand);
  const Strategy best = search_cluster(model, sheet, demand)->front();
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->text, best.text());
  EXPECT_DOUBLE_EQ(planned->tokens_per_s, 2048 * 16 / best.step_s);
}

}  // namespace
}  // namespace pagoda
