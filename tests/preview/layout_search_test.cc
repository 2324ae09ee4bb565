// Layouts of a run with a process on each node: what is found is what the run file says, for models
// with dense layers and nodes of three kinds.
#include "preview/layout_search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/sheet_file.h"
#include "tests/preview/published_configs.h"

namespace pagoda {
namespace {

// A layer without experts comes first.
constexpr const char* kConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 32000,
  "hidden_size": 1024, "num_hidden_layers": 5, "num_attention_heads": 16,
  "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 4096,
  "moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 4,
  "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.01, "initializer_range": 0.02,
  "max_position_embeddings": 65536, "mlp_only_layers": [0], "decoder_sparse_step": 1,
  "attention_bias": false})";

// One of each kind, the fastest at attention first.
ClusterSheet three_kinds() {
  ClusterSheet cluster;
  cluster.network.gb_s = 12;
  cluster.network.latency_us = 15;
  cluster.nodes = {machine("gpu-l40s"), machine("gpu-a40"), machine("gpu-t4")};
  return cluster;
}

std::vector<RunConfig> long_rows(const ClusterSheet& cluster) {
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = 16384;
  config.train.tokens_per_step = 16 * config.data.sequence_len;
  config.train.save_steps = 0;
  config.total_devices = devices_of_nodes(config, cluster);
  return std::vector(cluster.nodes.size(), config);
}

TEST(LayoutSearch, WhatIsFoundIsARunOfItsOwn) {
  const ModelSizes model = parse_model_sizes(kConfig, "test").take();
  const ClusterSheet cluster = three_kinds();
  const std::vector<RunConfig> configs = long_rows(cluster);
  EXPECT_EQ(configs.front().total_devices, 3);
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  // Experts with one chunk, zebra and two stages with 2, 4, 8 and 16.
  EXPECT_EQ(found.tried, 9);
  ASSERT_EQ(found.runs.size(), 9u);
  EXPECT_EQ(std::ranges::count_if(found.runs, &SearchedLayout::as_it_is), 1);
  for (const SearchedLayout& run : found.runs) {
    const double step_s = run.forecast.step.step_s();
    EXPECT_GE(step_s, found.runs.front().forecast.step.step_s());
    auto again = forecast_ranks(model, run.configs, cluster, kCoarsePlan);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_DOUBLE_EQ(again->step.step_s(), step_s) << run.section();
    const RunConfig& config = run.configs.front();
    EXPECT_EQ(config.zebra() || config.stages() == 2, !run.as_it_is);
    EXPECT_EQ(config.auto_lags(), !config.zebra());
    EXPECT_EQ(config.auto_offloaded(), !config.zebra());
  }
}

// Rows this long are nearly all attention, at which a T4 is many times slower than the others: with
// all three attending, in equal shares, the step waits for it.
TEST(LayoutSearch, ZebraKeepsAttentionOffASlowNode) {
  const ModelSizes model = parse_model_sizes(kConfig, "test").take();
  const ClusterSheet cluster = three_kinds();
  const LayoutSearch found = search_layouts(model, long_rows(cluster), cluster, kCoarsePlan);
  ASSERT_FALSE(found.runs.empty());
  const RunConfig& best = found.runs.front().configs.front();
  EXPECT_TRUE(best.zebra());
  EXPECT_LT(best.parallel.attention_devices, 3);
  const std::string section = found.runs.front().section();
  EXPECT_EQ(section.find("[train]\nmicro_batch_tokens = "), 0u) << section;
  EXPECT_NE(section.find("\n[parallel]\nlayout = \"zebra\"\nattention_devices = "),
            std::string::npos)
      << section;
}

std::vector<RunConfig> eight_rows(const ClusterSheet& cluster, int64_t chunks) {
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = 4096;
  config.train.tokens_per_step = 8 * config.data.sequence_len;
  config.train.chunks = chunks;
  config.train.save_steps = 0;
  config.total_devices = devices_of_nodes(config, cluster);
  return std::vector(cluster.nodes.size(), config);
}

// 48 layers on 8 devices are 48 x 8 x 8 = 3,072 parcels, so that few layouts are tried, by steps of
// a few layers: experts as they are, zebra with two chunks, two stages with two, four with four and
// eight with eight. Of eight stages both steps have 8 x 3 x 8 x 8 x 4 = 6,144 parcels.
TEST(LayoutSearch, OfManyDevicesSomeAreTriedByAFewLayers) {
  ClusterSheet cluster = three_kinds();
  MachineSheet node = machine("gpu-8x80gb");
  node.device.count = 4;
  cluster.nodes.assign(2, node);
  const std::vector<RunConfig> configs = eight_rows(cluster, 1);
  const LayoutSearch found =
      search_layouts(published("qwen3-30b-a3b"), configs, cluster, kSearchPlan);
  EXPECT_EQ(found.too_large, 0);
  EXPECT_EQ(found.tried, 1 + 1 + 3);
  ASSERT_FALSE(found.runs.empty());
  for (const SearchedLayout& run : found.runs) {
    EXPECT_TRUE(run.few_layers) << run.text();
    EXPECT_EQ(run.forecast.tokens, 8 * 4096);
    EXPECT_EQ(run.forecast.step.ranks.size(), 2u);
  }
}

// Layers of which half have no experts are not alike. With two chunks on 32 devices experts and
// zebra have 48 x 2 x 32 x 32 = 98,304 parcels, two stages with two chunks, four with four and
// eight with eight half of that.
TEST(LayoutSearch, WhatIsTooLargeIsLeftOut) {
  ModelSizes model = published("qwen3-30b-a3b");
  for (size_t l = 0; l < model.shape.is_moe.size(); l += 2) model.shape.is_moe[l] = 0;
  ClusterSheet cluster = three_kinds();
  cluster.nodes.assign(4, machine("gpu-8x80gb"));
  const LayoutSearch found = search_layouts(model, eight_rows(cluster, 2), cluster, kSearchPlan);
  EXPECT_EQ(found.too_large, 1 + 1 + 3);
  EXPECT_EQ(found.tried, 0);
  EXPECT_TRUE(found.runs.empty());
}

// The fastest layout gets the exchange with the shortest simulated step, flat among equals,
// unless the run names one.
TEST(LayoutSearch, ExchangeIsTheFastest) {
  const ModelSizes model = parse_model_sizes(kConfig, "test").take();
  ClusterSheet cluster = three_kinds();
  cluster.nodes.assign(2, machine("gpu-l40s"));
  for (MachineSheet& node : cluster.nodes) {
    node.device.count = 2;
    node.link.gb_s = 20;
    node.link.latency_us = 10;
  }
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = 2048;
  config.train.tokens_per_step = 16 * config.data.sequence_len;
  config.train.save_steps = 0;
  config.total_devices = devices_of_nodes(config, cluster);
  ASSERT_EQ(config.total_devices, 4);
  const std::vector<RunConfig> open(2, config);
  const LayoutSearch found = search_layouts(model, open, cluster, kCoarsePlan);
  ASSERT_FALSE(found.runs.empty());
  const SearchedLayout& best = found.runs.front();
  ExchangeSetting fastest = ExchangeSetting::kAuto;
  double least_s = 0;
  for (const ExchangeSetting exchange :
       {ExchangeSetting::kAuto, ExchangeSetting::kRounds, ExchangeSetting::kHalo}) {
    std::vector<RunConfig> configs = best.configs;
    for (RunConfig& of_rank : configs) of_rank.parallel.exchange = exchange;
    auto forecast = forecast_ranks(model, configs, cluster, kCoarsePlan);
    ASSERT_TRUE(forecast.ok()) << forecast.status().message();
    const double step_s = forecast->step.step_s();
    if (least_s > 0 && step_s >= least_s) continue;
    fastest = exchange;
    least_s = step_s;
  }
  EXPECT_EQ(best.configs.front().parallel.exchange, fastest);
  EXPECT_DOUBLE_EQ(best.forecast.step.step_s(), least_s);
  const bool named = best.section().find("exchange") != std::string::npos;
  EXPECT_EQ(named, fastest != ExchangeSetting::kAuto) << best.section();
  config.parallel.exchange = ExchangeSetting::kFlat;
  const std::vector<RunConfig> flat(2, config);
  for (const SearchedLayout& run : search_layouts(model, flat, cluster, kCoarsePlan).runs) {
    EXPECT_NE(run.section().find("exchange = \"flat\""), std::string::npos) << run.section();
  }
}

TEST(LayoutSearch, ChunksThatDoNotDivideAreLeftOut) {
  const ModelSizes model = parse_model_sizes(kConfig, "test").take();
  const ClusterSheet cluster = three_kinds();
  std::vector<RunConfig> configs = long_rows(cluster);
  for (RunConfig& config : configs) {
    config.train.tokens_per_step = 6 * config.data.sequence_len;
    config.train.chunks = 3;
  }
  // Experts with three chunks, zebra and two stages with two and three.
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  EXPECT_EQ(found.tried, 5);
}

}  // namespace
}  // namespace pagoda
