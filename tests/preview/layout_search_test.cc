// Layouts of a run with a process on each node: what is found is what the run file says, for models
// with dense layers and nodes of three kinds.
#include "preview/layout_search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/sheet_file.h"
#include "tests/preview/one_layer.h"
#include "tests/preview/published_configs.h"

namespace pagoda {
namespace {

// A layer without experts comes first.
constexpr const char* kConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 32000,
  "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16,
  "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 4096,
  "moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 4,
  "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.01, "initializer_range": 0.02,
  "max_position_embeddings": 65536, "mlp_only_layers": [0], "decoder_sparse_step": 1,
  "attention_bias": false})";

// Rows this long are nearly all attention, at which a T4 is many times slower than the others: with
// all three attending, in equal shares, the step waits for it. Zebra keeps attention off it.
TEST(LayoutSearch, WhatIsFoundIsARunOfItsOwn) {
  const ModelSizes model = parse_model_sizes(kConfig, "test").take();
  const ClusterSheet cluster = three_kinds();
  const std::vector<RunConfig> configs = rows_of(16, 16384, cluster);
  EXPECT_EQ(configs.front().total_devices, 3);
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  // Experts with one chunk, zebra and two stages with 2, 4, 8 and 16; of experts also two copies,
  // of two devices and of one, and three; and zebra also without kept experts, which with 16 chunks
  // is the best in any case, and tried once.
  EXPECT_EQ(found.tried, 9 + 2 + 3);
  ASSERT_EQ(found.runs.size(), 9u + 2u + 3u);
  EXPECT_EQ(std::ranges::count_if(found.runs, &SearchedLayout::as_it_is), 1);
  for (const SearchedLayout& run : found.runs) {
    const double step_s = run.forecast.step.step_s();
    EXPECT_GE(step_s, found.runs.front().forecast.step.step_s());
    auto again = forecast_ranks(model, run.configs, cluster, kCoarsePlan);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_DOUBLE_EQ(again->step.step_s(), step_s) << run.section(configs);
    const RunConfig& config = run.configs.front();
    EXPECT_EQ(config.zebra() || config.stages() == 2 || config.copies() > 1, !run.as_it_is);
    EXPECT_EQ(run.section(configs).empty(), run.as_it_is) << run.section(configs);
    EXPECT_EQ(config.auto_lags(), !config.zebra());
    EXPECT_EQ(config.auto_offloaded(), !config.zebra());
  }
  const RunConfig& best = found.runs.front().configs.front();
  EXPECT_TRUE(best.zebra());
  EXPECT_LT(best.parallel.attention_devices, 3);
  const std::string section = found.runs.front().section(configs);
  EXPECT_EQ(section.find("[train]\nmicro_batch_tokens = "), 0u) << section;
  EXPECT_NE(section.find("\n[parallel]\nlayout = \"zebra\"\nattention_devices = "),
            std::string::npos)
      << section;
}

// Two A40 and two V100, which are many times slower at rows this long. If all count as equally
// fast, the first of each node attend; what a run measures has both A40 attend.
TEST(LayoutSearch, InZebraTheFastGpusOfANodeAttend) {
  const ModelSizes model = parse_model_sizes(kConfig, "test").take();
  ClusterSheet cluster = three_kinds();
  cluster.nodes = {machine("gpu-2xa40"), machine("gpu-2xv100")};
  std::vector<RunConfig> configs = rows_of(16, 16384, cluster);
  for (RunConfig& config : configs) config.parallel.attention_devices = 2;
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  const auto is_zebra = [](const SearchedLayout& run) {
    const RunConfig& config = run.configs.front();
    return config.zebra() && config.stages() == 1 && config.copies() == 1;
  };
  const auto fastest = std::ranges::find_if(found.runs, is_zebra);
  ASSERT_NE(fastest, found.runs.end());
  const auto attending = [&](std::vector<RunConfig> ranks) {
    return planned_ranks(model, ranks, cluster).take().front().shape.attending_devices();
  };
  EXPECT_EQ(fastest->configs.front().parallel.shares, ShareKind::kMeasured) << fastest->text();
  EXPECT_EQ(attending(fastest->configs), (std::vector<int>{0, 1}));
  std::vector<RunConfig> by_speed = fastest->configs;
  for (RunConfig& config : by_speed) config.parallel.shares = ShareKind::kSpeed;
  EXPECT_EQ(attending(by_speed), (std::vector<int>{0, 2}));
}

// Zebra that leaves its numbers to the planner is as it is in one of what is found, whose lines
// have the planner's numbers; without kept experts it is another.
TEST(LayoutSearch, WhatZebraLeavesOpenIsInTheRunFile) {
  const ModelSizes model = parse_model_sizes(kConfig, "test").take();
  const ClusterSheet cluster = three_kinds();
  std::vector<RunConfig> configs = rows_of(16, 16384, cluster);
  for (RunConfig& config : configs) {
    config.parallel.layout = LayoutKind::kZebra;
    config.train.chunks = 2;
  }
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  EXPECT_EQ(found.tried, 9 + 2 + 3);  // as above
  EXPECT_EQ(found.runs.size(), 9u + 2u + 3u);
  EXPECT_EQ(std::ranges::count_if(found.runs, &SearchedLayout::as_it_is), 1);
  int without_kept = 0;
  for (const SearchedLayout& run : found.runs) {
    const RunConfig& config = run.configs.front();
    if (!config.zebra() || config.train.chunks != 2) continue;
    const std::string section = run.section(configs);
    const bool none = section.find("\noffloaded = [\"0\"]\n") != std::string::npos;
    EXPECT_EQ(run.as_it_is, !none) << section;
    EXPECT_NE(section.find("\noffloaded = "), std::string::npos);
    EXPECT_NE(section.find("\nstages = 1\n"), std::string::npos) << section;
    without_kept += none;
  }
  EXPECT_EQ(without_kept, 1);
}

// Two nodes of two devices, which are near in a node and far between nodes.
ClusterSheet far_nodes() {
  ClusterSheet cluster;
  cluster.network.gb_s = 1;
  cluster.network.latency_us = 50;
  MachineSheet node = machine("gpu-l40s");
  node.device.count = 2;
  node.link.gb_s = 20;
  node.link.latency_us = 10;
  cluster.nodes.assign(2, node);
  return cluster;
}

// A run takes one GPU of a machine, or those that it lists.
TEST(LayoutSearch, DevicesThatARunDoesNotListAreInTheRunFile) {
  const ModelSizes model = parse_model_sizes(kOneLayer, "test").take();
  const ClusterSheet cluster = far_nodes();  // two GPUs each
  const auto section_of = [&](const char* devices, const char* of_rank) {
    std::vector<RunConfig> configs = rows_of(8, 256, cluster);
    configs[0].train.devices = {devices};
    configs[1].train.devices = {of_rank};
    const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
    const auto own = std::ranges::find_if(found.runs, &SearchedLayout::as_it_is);
    return own == found.runs.end() ? "none is as it is" : own->section(configs);
  };
  const std::string both = "[train]\ndevices = [\"cuda*2\"]\n";
  EXPECT_EQ(section_of("auto", "auto").find(both), 0u);
  EXPECT_EQ(section_of("cuda*3", "cuda*3").find(both), 0u);
  EXPECT_EQ(section_of("cuda*2", "cuda*2"), "");
  const std::string unequal = section_of("cuda*2", "cuda");
  EXPECT_EQ(unequal.find(both), 0u);
  EXPECT_NE(unequal.find("\n[rank.1.train]\ndevices = [\"cuda*2\"]\n"), std::string::npos)
      << unequal;
  EXPECT_EQ(section_of("auto", "auto").find("[rank."), std::string::npos);
  // What all but rank 0 have may be the file's, or a section's of their own.
  const std::string of_first = section_of("cuda", "cuda*2");
  EXPECT_NE(of_first.find("\n[rank.0.train]\ndevices = [\"cuda*2\"]\n"
                          "[rank.1.train]\ndevices = [\"cuda*2\"]\n"),
            std::string::npos)
      << of_first;
}

// Three rows of a chunk are one shard, of which a stage's three devices share no attention; with a
// shard for each they do, in other bits. A pipeline is tried with both, so that the run's own is
// among those found.
TEST(LayoutSearch, PipelinesAreTriedInTheRunsOwnSumsToo) {
  const ModelSizes model = parse_model_sizes(kConfig, "test").take();
  ClusterSheet cluster = far_nodes();
  for (MachineSheet& node : cluster.nodes) node.device.count = 3;
  std::vector<RunConfig> configs = rows_of(6, 256, cluster);
  for (RunConfig& config : configs) {
    config.parallel.layout = LayoutKind::kPipeline;
    config.parallel.stages = 2;
    config.train.chunks = 2;
  }
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  int own = 0, for_all = 0;
  for (const SearchedLayout& run : found.runs) {
    const RunConfig& config = run.configs.front();
    if (config.zebra() || config.stages() != 2 || config.copies() > 1) continue;
    if (config.train.chunks != 2) continue;
    own += run.as_it_is && config.sums().shards == 1;
    for_all += !run.as_it_is && config.sums().shards == 3;
  }
  EXPECT_EQ(own, 1);
  EXPECT_GE(for_all, 1);
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

ClusterSheet two_nodes_of_four() {
  ClusterSheet cluster = three_kinds();
  MachineSheet node = machine("gpu-8x80gb");
  node.device.count = 4;
  cluster.nodes.assign(2, node);
  return cluster;
}

// 48 layers on 8 devices are 48 x 8 x 8 = 3,072 parcels, so that few layouts are tried, by steps of
// a few layers: experts as they are, zebra with two chunks, two stages with two, four with four and
// eight with eight, zebra in two stages with four and in four with eight. Of eight stages both
// steps have 8 x 3 x 8 x 8 x 4 = 6,144 parcels. Experts and zebra are also tried with a copy on
// each node; experts then have few enough parcels, 48 x 8 x 4 = 1,536, for all layers to be
// simulated.
TEST(LayoutSearch, OfManyDevicesSomeAreTriedByAFewLayers) {
  const ClusterSheet cluster = two_nodes_of_four();
  const std::vector<RunConfig> configs = eight_rows(cluster, 1);
  const LayoutSearch found =
      search_layouts(published("qwen3-30b-a3b"), configs, cluster, kSearchPlan);
  EXPECT_EQ(found.too_large, 0);
  EXPECT_EQ(found.tried, 1 + 1 + 3 + 2 + 2);
  ASSERT_FALSE(found.runs.empty());
  const auto some = [&](auto&& is) {
    return std::ranges::any_of(found.runs,
                               [&](const SearchedLayout& run) { return is(run.configs.front()); });
  };
  EXPECT_TRUE(some([](const RunConfig& c) { return c.zebra() && c.stages() == 4; }));
  EXPECT_TRUE(some([](const RunConfig& c) { return c.zebra() && c.copies() == 2; }));
  for (const SearchedLayout& run : found.runs) {
    const RunConfig& config = run.configs.front();
    EXPECT_EQ(run.few_layers, config.zebra() || config.copies() == 1) << run.text();
    EXPECT_EQ(config.parallel.offloaded.size(), 1u) << run.text();
    EXPECT_EQ(run.forecast.tokens, 8 * 4096);
    EXPECT_EQ(run.forecast.step.ranks.size(), 2u);
  }
}

// In another order than breadth-first few layers do not tell what zebra in stages takes: of the
// layouts above the one in two stages and the one in four are left out.
TEST(LayoutSearch, WhatFewLayersDoNotTellIsLeftOut) {
  const ClusterSheet cluster = two_nodes_of_four();
  std::vector<RunConfig> configs = eight_rows(cluster, 1);
  for (RunConfig& config : configs) {
    config.parallel.order = PipelineOrder::kOneForwardOneBackward;
  }
  const LayoutSearch found =
      search_layouts(published("qwen3-30b-a3b"), configs, cluster, kSearchPlan);
  EXPECT_EQ(found.too_large, 2);
  ASSERT_FALSE(found.runs.empty());
  for (const SearchedLayout& run : found.runs) {
    const RunConfig& config = run.configs.front();
    EXPECT_FALSE(config.zebra() && config.stages() > 1) << run.text();
  }
}

// Layers of which half have no experts are not alike. With two chunks on 32 devices experts and
// zebra have 48 x 2 x 32 x 32 = 98,304 parcels, two stages with two chunks, four with four and
// eight with eight half of that, and zebra in two stages and in four, with twice the chunks, as
// many.
TEST(LayoutSearch, WhatIsTooLargeIsLeftOut) {
  ModelSizes model = published("qwen3-30b-a3b");
  for (size_t l = 0; l < model.shape.is_moe.size(); l += 2) model.shape.is_moe[l] = 0;
  ClusterSheet cluster = three_kinds();
  cluster.nodes.assign(4, machine("gpu-8x80gb"));
  const LayoutSearch found = search_layouts(model, eight_rows(cluster, 2), cluster, kSearchPlan);
  EXPECT_EQ(found.too_large, 1 + 1 + 3 + 2);
  EXPECT_EQ(found.tried, 0);
  EXPECT_TRUE(found.runs.empty());
}

TEST(LayoutSearch, ChunksThatDoNotDivideAreLeftOut) {
  const ModelSizes model = parse_model_sizes(kConfig, "test").take();
  const ClusterSheet cluster = three_kinds();
  std::vector<RunConfig> configs = rows_of(16, 16384, cluster);
  for (RunConfig& config : configs) {
    config.train.tokens_per_step = 6 * config.data.sequence_len;
    config.train.chunks = 3;
  }
  // Experts with three chunks, zebra and two stages with two and three; of the two shards that
  // experts have then, two copies; and zebra without kept experts.
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  EXPECT_EQ(found.tried, 5 + 1 + 2);
}

constexpr double kExperts = 16, kExpertElements = 3.0 * 1024 * 512, kHidden = 1024, kChosen = 4;

// The fastest without zebra that has so many copies, or one that is empty.
SearchedLayout fastest_of(const LayoutSearch& found, int copies) {
  for (const SearchedLayout& run : found.runs) {
    const RunConfig& config = run.configs.front();
    if (!config.zebra() && config.copies() == copies) return run;
  }
  ADD_FAILURE() << "none has " << copies << " copies";
  return {};
}

// Zebra, which keeps nearly all experts on one device here, is left out. Half of a node's rows are
// for experts of the other: each goes and comes in two bytes an element, and in the backward goes
// again, its gradient too, and the gradient of what it was made of comes; with four bytes a row
// both ways. A copy of the experts on each node takes as much to the other, once a step, as the
// weights of half of them, and for the other half the sums of its gradients.
TEST(LayoutSearch, CopiesWinWhereManyRowsWouldGoFar) {
  const ModelSizes model = parse_model_sizes(kOneLayer, "test").take();
  const ClusterSheet cluster = far_nodes();
  constexpr int64_t kRows = 64, kTokens = 2048;
  const std::vector<RunConfig> configs = rows_of(kRows, kTokens, cluster);
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  ASSERT_FALSE(found.runs.empty());
  const SearchedLayout best = fastest_of(found, 2), alone = fastest_of(found, 1);
  const double rows = kRows * kTokens / 2 * kChosen / 2;
  const double row_bytes = rows * (10 * kHidden + 8);
  const double copy_bytes = kExperts / 2 * kExpertElements * (2 + 4);
  const double link = 1e9 * 2;  // both devices'
  EXPECT_GE(alone.forecast.step.step_s(), row_bytes / link);
  EXPECT_LT(best.forecast.step.step_s(), row_bytes / link);
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto sent = [&](const SearchedLayout& run) {
      return static_cast<double>(run.forecast.step.ranks[rank].sent_bytes);
    };
    EXPECT_EQ(sent(alone) - sent(best), row_bytes - copy_bytes);
    // All that is on the devices stays there; what comes waits in the host for its use.
    EXPECT_EQ(best.forecast.step.ranks[rank].traffic.fetch.bytes, 0);
    EXPECT_EQ(best.forecast.step.ranks[rank].traffic.write_back.bytes, 0);
  }
  const std::string section = best.section(configs);
  EXPECT_NE(section.find("\nexpert_shards = 8\n"), std::string::npos) << section;
  EXPECT_NE(section.find("\ncopies = 2\n"), std::string::npos) << section;
  // A run has one GPU of its machine, unless it lists them.
  EXPECT_EQ(section.find("[train]\ndevices = [\"cuda*2\"]\n"), 0u) << section;
  EXPECT_EQ(section.find("[rank."), std::string::npos) << section;
}

// What the run is told of its network, and its rounds go by, is what the nodes' sheets say.
TEST(LayoutSearch, UnequalNetworkCardsAreInTheRunFile) {
  const ModelSizes model = parse_model_sizes(kOneLayer, "test").take();
  ClusterSheet cluster = far_nodes();
  const auto layout = [&](const char* own) {
    std::vector<RunConfig> configs = rows_of(8, 256, cluster);
    for (RunConfig& config : configs) {
      config.parallel.exchange = ExchangeSetting::kRounds;
      if (own != nullptr) config.parallel.network_gb_s = {own, own};
    }
    return forecast_layout(model, configs, cluster, kCoarsePlan).take();
  };
  const auto section_of = [&](const SearchedLayout& run) {
    return run.section(rows_of(8, 256, cluster));
  };
  EXPECT_EQ(section_of(layout(nullptr)).find("network_gb_s"), std::string::npos);
  EXPECT_NE(section_of(layout("3")).find("network_gb_s = [\"3\", \"3\"]"), std::string::npos);
  const double slow_s = layout(nullptr).forecast.step.step_s();
  cluster.nodes[1].network.gb_s = 0.25;
  const SearchedLayout unequal = layout("3");
  const std::string section = section_of(unequal);
  EXPECT_NE(section.find("\nexchange = \"rounds\"\nnetwork_gb_s = [\"1\", \"0.25\"]\n"),
            std::string::npos)
      << section;
  EXPECT_GT(unequal.forecast.step.step_s(), slow_s);
  auto planned = planned_ranks(model, unequal.configs, cluster);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->front().shape.network_rates, (std::vector<double>{1, 0.25}));
}

// Nodes of two devices and of one: each is a copy, and no row leaves it.
TEST(LayoutSearch, CopiesOfUnequalSizeAreThoseOfUnequalNodes) {
  const ModelSizes model = parse_model_sizes(kOneLayer, "test").take();
  ClusterSheet cluster = far_nodes();
  cluster.nodes[1].device.count = 1;
  const std::vector<RunConfig> configs = rows_of(64, 2048, cluster);
  ASSERT_EQ(configs.front().total_devices, 3);
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  const SearchedLayout copied = fastest_of(found, 2);
  auto planned = planned_ranks(model, copied.configs, cluster);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const RunShape& shape = planned->front().shape;
  EXPECT_EQ(shape.copies.devices, (std::vector<int>{0, 0, 1}));
  for (int64_t r = 0; r < shape.head(); ++r) {
    if (shape.records[static_cast<size_t>(r)].expert < 0) continue;
    EXPECT_EQ(shape.seat_of(r, 1), 2);
  }
  const std::string section = copied.section(configs);
  EXPECT_NE(section.find("\n[rank.1.train]\ndevices = [\"auto\"]\n"), std::string::npos) << section;
}

// Rows of so few tokens are a fourth of what copies would send.
TEST(LayoutSearch, CopiesLoseWhereRowsAreFew) {
  const ModelSizes model = parse_model_sizes(kOneLayer, "test").take();
  const ClusterSheet cluster = far_nodes();
  const LayoutSearch found = search_layouts(model, rows_of(8, 256, cluster), cluster, kCoarsePlan);
  ASSERT_FALSE(found.runs.empty());
  EXPECT_EQ(found.runs.front().configs.front().copies(), 1) << found.runs.front().text();
  EXPECT_GE(found.tried, std::ssize(found.runs));
  EXPECT_LT(fastest_of(found, 1).forecast.step.step_s(),
            fastest_of(found, 2).forecast.step.step_s());
  EXPECT_LT(fastest_of(found, 2).forecast.step.step_s(),
            fastest_of(found, 4).forecast.step.step_s());
}

// A run that has copies is one of those found, and others have none.
TEST(LayoutSearch, ARunsOwnCopiesStayAmongThose) {
  const ModelSizes model = parse_model_sizes(kOneLayer, "test").take();
  const ClusterSheet cluster = far_nodes();
  std::vector<RunConfig> configs = rows_of(8, 256, cluster);
  for (RunConfig& config : configs) {
    config.parallel.copies = 3;  // two devices, and one twice
    config.train.shards = config.train.expert_shards = 8;
  }
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  EXPECT_EQ(std::ranges::count_if(found.runs, &SearchedLayout::as_it_is), 1);
  for (const SearchedLayout& run : found.runs) {
    EXPECT_EQ(run.as_it_is, run.configs.front().copies() == 3) << run.text();
  }
  const std::string section = fastest_of(found, 1).section(configs);
  EXPECT_NE(section.find("\ncopies = 1\n"), std::string::npos) << section;
}

// The fastest layout gets the exchange with the shortest simulated step, unless the run names one.
// On nodes of several devices that are far from each other, of which one has all of a step's rows,
// it is not the flat one.
TEST(LayoutSearch, ExchangeIsTheFastest) {
  const ModelSizes model = parse_model_sizes(kOneLayer, "test").take();
  ClusterSheet cluster = far_nodes();
  cluster.network = {100, 1000};
  cluster.nodes.assign(2, machine("gpu-4x48gb"));
  std::vector<RunConfig> configs = rows_of(1, 2048, cluster);
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  ASSERT_FALSE(found.runs.empty());
  const SearchedLayout& best = found.runs.front();
  ExchangeSetting fastest = ExchangeSetting::kAuto;
  double least_s = 0;
  for (const ExchangeSetting exchange :
       {ExchangeSetting::kAuto, ExchangeSetting::kRounds, ExchangeSetting::kHalo}) {
    std::vector<RunConfig> with = best.configs;
    for (RunConfig& of_rank : with) of_rank.parallel.exchange = exchange;
    auto forecast = forecast_ranks(model, with, cluster, kCoarsePlan);
    ASSERT_TRUE(forecast.ok()) << forecast.status().message();
    const double step_s = forecast->step.step_s();
    if (least_s > 0 && step_s >= least_s) continue;
    fastest = exchange;
    least_s = step_s;
  }
  ASSERT_NE(fastest, ExchangeSetting::kAuto) << best.section(configs);
  EXPECT_EQ(best.configs.front().parallel.exchange, fastest);
  EXPECT_DOUBLE_EQ(best.forecast.step.step_s(), least_s);
  EXPECT_NE(best.section(configs).find("\nexchange = "), std::string::npos)
      << best.section(configs);
  for (RunConfig& config : configs) config.parallel.exchange = ExchangeSetting::kFlat;
  for (const SearchedLayout& run : search_layouts(model, configs, cluster, kCoarsePlan).runs) {
    EXPECT_NE(run.section(configs).find("exchange = \"flat\""), std::string::npos)
        << run.section(configs);
  }
}

// Twenty GPUs on five nodes with a fast network and a millisecond between them: of the rows that
// leave a node, HALO has a message for each other node where flat has one for each GPU there.
// Rounds are not tried.
TEST(LayoutSearch, HaloIsTriedOfManyDevices) {
  const ModelSizes model = parse_model_sizes(kOneLayer, "test").take();
  ClusterSheet cluster = far_nodes();
  cluster.network = {100, 1000};
  cluster.nodes.assign(5, machine("gpu-4x48gb"));
  const std::vector<RunConfig> configs = rows_of(20, 2048, cluster);
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  ASSERT_FALSE(found.runs.empty());
  const SearchedLayout& best = found.runs.front();
  EXPECT_EQ(best.configs.front().parallel.exchange, ExchangeSetting::kHalo)
      << best.section(configs);
  for (const SearchedLayout& run : found.runs) {
    EXPECT_NE(run.configs.front().parallel.exchange, ExchangeSetting::kRounds)
        << run.section(configs);
  }
}

}  // namespace
}  // namespace pagoda
