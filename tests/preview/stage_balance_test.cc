// Layers of stages on unequal GPUs, whose speeds only a sheet knows.
#include "preview/stage_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "preview/few_layers.h"
#include "preview/layout_search.h"
#include "tests/preview/published_configs.h"
#include "tests/preview/twelve_layers.h"

namespace pagoda {
namespace {

using Layers = std::vector<int64_t>;

RanksForecast busy(const Layers& layers, const std::vector<double>& device_busy_s) {
  RanksForecast forecast;
  forecast.stage_layers = layers;
  forecast.step.device_busy_s = device_busy_s;
  return forecast;
}

TEST(StageBalance, LayersFollowTheTimeThatTheyTook) {
  // A layer takes 1 s on one and 3 s on the other: 9 and 3 of twelve end together.
  EXPECT_EQ(layers_by_time(busy({6, 6}, {6, 18})), (Layers{9, 3}));
  EXPECT_EQ(layers_by_time(busy({9, 3}, {9, 9})), (Layers{9, 3}));
  // The busiest of a stage's devices counts.
  EXPECT_EQ(layers_by_time(busy({6, 6}, {2, 6, 18, 1})), (Layers{9, 3}));
}

TEST(StageBalance, OneLayerMovesToWhoHasLeastToDo) {
  EXPECT_EQ(one_layer_moved(busy({4, 4, 4}, {5, 9, 4})), (Layers{4, 3, 5}));
  EXPECT_EQ(one_layer_moved(busy({11, 1}, {5, 9})), Layers{});
}

// Both stages have 6 layers, of 1 s each on either device, and the second has the head, of 3 s. The
// runs with few have one layer and two in a stage: they take 1 and 4 s, and 2 and 5 s; all take 6
// and 9 s. By these a stage takes 1 and 2/3 layers in a second, so that the 7th layer of the first
// ends after 7 s and the 5th of the second after 7.5 s. By 2 and 5 s there would be 9 and 3.
TEST(StageBalance, LayersFollowTheTimeThatAllWouldTake) {
  RanksForecast all = busy({6, 6}, {2, 5});
  continue_devices(busy({1, 1}, {1, 4}).step, Layers{1, 1}, all);
  EXPECT_EQ(all.step.device_busy_s, (std::vector<double>{6, 9}));
  EXPECT_EQ(layers_by_time(all), (Layers{7, 5}));
}

// The runs with few layers have 2 and 1 of 8 and 5, and then 4 and 2. The first stage's devices
// take 2 and 3 s more for 2 more layers, and so three times as much for 6; the other's takes 1 s
// more for one, and four times as much for 4. Among few layers the last device would be busy
// longest.
TEST(StageBalance, ADeviceIsBusyWithTheLayersOfItsStage) {
  RanksForecast all = busy({8, 5}, {4, 6, 7});
  continue_devices(busy({2, 1}, {2, 3, 6}).step, Layers{2, 1}, all);
  EXPECT_EQ(all.step.device_busy_s, (std::vector<double>{8, 12, 10}));
  EXPECT_EQ(one_layer_moved(all), (Layers{7, 6}));
}

// An A40 is slower than an L40S. In a pipeline of both its stages have fewer layers, and the run
// file says so.
TEST(StageBalance, ASearchDividesLayersByWhatGpusDo) {
  const ModelSizes model = twelve_layers();
  ClusterSheet cluster;
  cluster.network.gb_s = 14;
  cluster.network.latency_us = 15;
  cluster.nodes = {machine("gpu-l40s"), machine("gpu-l40s"), machine("gpu-a40"),
                   machine("gpu-a40")};
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = 2048;
  config.train.tokens_per_step = 16 * config.data.sequence_len;
  config.train.save_steps = 0;
  config.total_devices = 4;
  const std::vector<RunConfig> configs(4, config);
  const SearchedLayout best = search_layouts(model, configs, cluster, kCoarsePlan).runs.front();
  ASSERT_EQ(best.configs.front().stages(), 4) << best.text();
  const Layers layers = best.forecast.stage_layers;
  EXPECT_EQ(best.configs.front().stage_layers(), layers) << best.text();
  EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), int64_t{0}), 12);
  EXPECT_GT(std::min(layers[0], layers[1]), std::max(layers[2], layers[3]));
  EXPECT_NE(best.section(configs).find("\nstage_layers = [\"" + std::to_string(layers[0]) + "\", "),
            std::string::npos)
      << best.section(configs);
  std::vector<RunConfig> even = best.configs;
  for (RunConfig& of_rank : even) of_rank.parallel.stage_layers = {"auto"};
  auto alike = forecast_ranks(model, even, cluster, kCoarsePlan);
  ASSERT_TRUE(alike.ok()) << alike.status().message();
  EXPECT_EQ(alike->stage_layers, (Layers{3, 3, 3, 3})) << "GPUs are listed alike";
  std::printf("layers alike %.4f s, otherwise %.4f s\n", alike->step.step_s(),
              best.forecast.step.step_s());
  EXPECT_LT(best.forecast.step.step_s(), 0.95 * alike->step.step_s());
}

}  // namespace
}  // namespace pagoda
