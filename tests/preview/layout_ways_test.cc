// The ways of using unequal devices, as the lines of a plan have them.
#include "preview/layout_ways.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cli/sheet_file.h"
#include "tests/preview/published_configs.h"
#include "tests/preview/twelve_experts.h"

namespace pagoda {
namespace {

// The second is half as fast in all that GPUs do.
ClusterSheet fast_and_half_as_fast() {
  ClusterSheet cluster;
  cluster.network.gb_s = 1000;  // what travels hardly takes time
  MachineSheet fast = machine("gpu-a40");
  fast.device.launch_us = 0;
  MachineSheet slow = fast;
  for (double MachineSheet::Device::*rate :
       {&MachineSheet::Device::peak_tflops, &MachineSheet::Device::gemm_tflops,
        &MachineSheet::Device::weight_gb_s, &MachineSheet::Device::attention_tflops,
        &MachineSheet::Device::memory_gb_s}) {
    slow.device.*rate /= 2;
  }
  cluster.nodes = {fast, slow};
  return cluster;
}

// Layers of twelve experts of 3 x 1,024 x 2,048 elements.
ModelSizes model_sizes() {
  std::string config = kTwelveExperts;
  for (const auto& [from, to] :
       {std::pair("\"hidden_size\": 64", "\"hidden_size\": 1024"),
        {"\"moe_intermediate_size\": 96", "\"moe_intermediate_size\": 2048"}}) {
    config.replace(config.find(from), std::string(from).size(), to);
  }
  return parse_model_sizes(config, "test").take();
}

double step_s(const std::vector<RunConfig>& configs, const ClusterSheet& cluster) {
  return forecast_ranks(model_sizes(), configs, cluster, kCoarsePlan).take().step.step_s();
}

// One device's, with microbatches of one row or of two; four do not divide six.
double alone_s(RunConfig config, const ClusterSheet& cluster) {
  config.total_devices = 1;
  const double of_one = step_s({config}, cluster);
  config.train.micro_batch_tokens *= 2;
  const std::vector<RunConfig> two = {config};
  auto of_two = forecast_ranks(model_sizes(), two, cluster, kCoarsePlan);
  return of_two.ok() ? std::min(of_one, of_two->step.step_s()) : of_one;
}

TEST(LayoutWays, MeasuredSharesAreThoseOfTheSheets) {
  const ClusterSheet cluster = fast_and_half_as_fast();
  std::vector<RunConfig> configs = rows_of(6, 1024, cluster);
  const auto shards_of_first = [&](ShareKind shares) {
    for (RunConfig& config : configs) config.parallel.shares = shares;
    const auto ranks = planned_ranks(model_sizes(), configs, cluster).take();
    return std::ranges::count(ranks.front().shape.shard_device, 0);
  };
  for (RunConfig& config : configs) config.train.shards = 6;
  EXPECT_EQ(shards_of_first(ShareKind::kSpeed), 3);
  EXPECT_EQ(shards_of_first(ShareKind::kMeasured), 4);
}

TEST(LayoutWays, EachIsThereAtItsBest) {
  const ClusterSheet cluster = fast_and_half_as_fast();
  const std::vector<RunConfig> configs = rows_of(6, 1024, cluster);
  const ModelSizes model = model_sizes();
  const LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  const std::vector<LayoutWay> ways = layout_ways(model, configs, cluster, kCoarsePlan, found);
  ASSERT_EQ(ways.size(), 7u);
  const auto of = [&](const std::string& end) {
    const auto at = std::ranges::find_if(
        ways, [&](const LayoutWay& way) { return way.name.find(end) != std::string::npos; });
    return at == ways.end() ? LayoutWay{} : *at;
  };
  const LayoutWay equal = of("(EP)"), by_speed = of("by speed"), ideal = of("(EP (Ideal))");
  // Work by speed ends 1.5 times as soon as in halves, of which the slower one's takes longest, but
  // for what both take equally.
  EXPECT_LT(by_speed.step_s, equal.step_s);
  EXPECT_NE(by_speed.settings.find("parallel.shares = \"measured\""), std::string::npos);
  double steps_per_s = 0;
  for (const MachineSheet& node : cluster.nodes) {
    ClusterSheet one = cluster;
    one.nodes = {node};
    steps_per_s += 1 / alone_s(configs.front(), one);
  }
  EXPECT_NEAR(ideal.step_s, 1 / steps_per_s, 1e-9 * ideal.step_s);
  EXPECT_EQ(ideal.settings, "");
  const LayoutWay in_turn = of("DistEP"), zebra = of("zebra");
  EXPECT_GT(in_turn.step_s, zebra.step_s);
  EXPECT_GT(zebra.step_s, 0);
  EXPECT_GT(of("pipeline").step_s, 0);
}

// The slower one alone has room for the model: what both kinds do by themselves is what it does.
TEST(LayoutWays, EachKindHasItsOwnBudgets) {
  ClusterSheet cluster;
  cluster.network.gb_s = 1;
  cluster.nodes = {machine("cpu-2-cores")};
  RunConfig config = rows_of(6, 1024, cluster).front();
  config.train.devices = {"cpu/4", "cpu/8"};
  config.memory.device = MemorySizes::parse({"1MiB", "4GiB"}).take();
  config.total_devices = 2;
  const std::vector<LayoutWay> ways =
      layout_ways(model_sizes(), {&config, 1}, cluster, kCoarsePlan, {});
  ASSERT_EQ(ways.size(), 7u);
  RunConfig alone = config;
  alone.train.devices = {"cpu/8"};
  alone.memory.device = MemorySizes::parse({"4GiB"}).take();
  EXPECT_DOUBLE_EQ(ways[2].step_s, alone_s(alone, cluster)) << ways[2].name;
}

// One or two of three devices attend, whatever zebra has found best for itself.
TEST(LayoutWays, InTurnHasTheAttentionDevicesThatAreBestForIt) {
  ClusterSheet cluster = fast_and_half_as_fast();
  cluster.nodes.push_back(cluster.nodes.back());
  const std::vector<RunConfig> configs = rows_of(6, 1024, cluster);
  const ModelSizes model = model_sizes();
  LayoutSearch found = search_layouts(model, configs, cluster, kCoarsePlan);
  const auto zebra = std::ranges::find_if(found.runs, [](const SearchedLayout& run) {
    return run.configs.front().zebra() && run.configs.front().stages() == 1;
  });
  ASSERT_NE(zebra, found.runs.end());
  double least_s = 0;
  int better = 0;
  for (const int64_t attending : {2, 1}) {
    std::vector<RunConfig> in_turn = zebra->configs;
    for (RunConfig& config : in_turn) {
      config.train.chunks = 1;
      config.parallel.attention_devices = attending;
      config.parallel.offloaded = {"0"};
      config.parallel.lags = {"0", "0", "0"};
      config.parallel.kept_rows = "auto";
    }
    auto layout = forecast_layout(model, in_turn, cluster, kCoarsePlan);
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    const double step_s = layout->forecast.step.step_s();
    if (least_s > 0 && step_s >= least_s) continue;
    least_s = step_s;
    better = static_cast<int>(attending);
  }
  for (const int64_t of_zebra : {1, 2}) {
    for (RunConfig& config : zebra->configs) config.parallel.attention_devices = of_zebra;
    const std::vector<LayoutWay> ways = layout_ways(model, configs, cluster, kCoarsePlan, found);
    ASSERT_EQ(ways.size(), 7u);
    EXPECT_DOUBLE_EQ(ways[3].step_s, least_s) << ways[3].name << ": " << better << " attend";
  }
}

TEST(LayoutWays, EqualDevicesHaveNone) {
  ClusterSheet cluster = fast_and_half_as_fast();
  cluster.nodes[1] = cluster.nodes[0];
  const std::vector<RunConfig> configs = rows_of(6, 1024, cluster);
  EXPECT_TRUE(layout_ways(model_sizes(), configs, cluster, kCoarsePlan, {}).empty());
}

}  // namespace
}  // namespace pagoda
