// How many layers the stages of a pipeline have, by the devices that a run file or a cluster's
// sheet names: what is planned is what ranks run, and a step is shorter for it.
#include <gtest/gtest.h>

#include <cstdio>

#include "preview/run_forecast.h"
#include "tests/preview/published_configs.h"
#include "tests/preview/twelve_layers.h"
#include "tests/testing/ranks/rank_threads.h"
#include "train/run_setup.h"

namespace pagoda {
namespace {

constexpr int64_t kLayers = 12;

RunConfig run_on(const std::string& devices) {
  RunConfig config;
  config.train.devices = {devices};
  config.train.threads = 1;
  config.train.save_steps = 0;
  config.data.sequence_len = config.train.micro_batch_tokens = 256;
  config.train.tokens_per_step = 16 * 256;
  config.train.chunks = 8;
  config.parallel.layout = LayoutKind::kPipeline;
  config.parallel.stages = 2;
  config.memory.device = MemorySize::parse("1GiB").take();
  return config;
}

std::vector<int64_t> layers_of(const RunConfig& config) {
  auto planned = planned_run(twelve_layers(), config, machine("cpu-2-cores"));
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  return planned->shape.stages.layer_counts(kLayers);
}

using Layers = std::vector<int64_t>;

// Twice as fast: eight layers take as long as four. Evenly divided, six of the slower device take
// as long as twelve of the faster one, half as long again.
TEST(StageLayers, AStepIsShorterByThem) {
  for (const PipelineOrder order : {PipelineOrder::kGpipe, PipelineOrder::kOneForwardOneBackward,
                                    PipelineOrder::kBreadthFirst}) {
    RunConfig config = run_on("cpu/8,cpu/16");
    config.parallel.order = order;
    MachineSheet sheet = machine("cpu-2-cores");
    sheet.host.cores = 8;  // nothing waits for a core
    const RunForecast by_speed = forecast_run(twelve_layers(), config, sheet, kFinePlan).take();
    config.parallel.shares = ShareKind::kUniform;
    const RunForecast even = forecast_run(twelve_layers(), config, sheet, kFinePlan).take();
    ASSERT_TRUE(by_speed.step && even.step);
    const auto layers = [](const RunForecast& of) {
      return Layers{of.devices[0].layers, of.devices[1].layers};
    };
    EXPECT_EQ(layers(by_speed), (Layers{8, 4}));
    EXPECT_EQ(layers(even), (Layers{6, 6}));
    const double ratio = by_speed.step->step_s() / even.step->step_s();
    std::printf("order %d: evenly %.4f s, by speed %.4f s, %.3f\n", static_cast<int>(order),
                even.step->step_s(), by_speed.step->step_s(), ratio);
    EXPECT_LT(ratio, 0.8);
    EXPECT_GT(ratio, 0.6);
  }
}

TEST(StageLayers, FollowWhatDevicesAreListedWith) {
  EXPECT_EQ(layers_of(run_on("cpu*2")), (Layers{6, 6}));
  EXPECT_EQ(layers_of(run_on("cpu/16,cpu/8")), (Layers{4, 8}));
  EXPECT_EQ(layers_of(run_on("cpu/2,cpu/200")), (Layers{11, 1}));
  // Devices at one kind of work each as fast as the other's: attention and two experts of a layer
  // take 0.67 x 8 + 1.57 x 16 = 30.5 and 0.67 x 16 + 1.57 x 8 = 23.3, 5.2 layers of the one for
  // 6.8 of the other.
  EXPECT_EQ(layers_of(run_on("cpu/16:8,cpu/8:16")), (Layers{5, 7}));
  // Both devices of the first stage have experts, and with two shards both attend.
  RunConfig three = run_on("cpu/8*3");
  three.train.shards = 2;
  EXPECT_EQ(layers_of(three), (Layers{8, 4}));
  // With one shard one of them does: 0.67 + 1.57 / 2 = 1.46 to 2.24, 7.3 layers for 4.7.
  three.train.shards = 1;
  EXPECT_EQ(layers_of(three), (Layers{7, 5}));
}

TEST(StageLayers, ARunFilesLayersStay) {
  RunConfig config = run_on("cpu/8,cpu/16");
  config.parallel.stage_layers = {"5", "7"};
  for (const PipelineOrder order : {PipelineOrder::kGpipe, PipelineOrder::kBreadthFirst}) {
    config.parallel.order = order;
    EXPECT_EQ(layers_of(config), (Layers{5, 7}));
  }
  config.parallel.stage_layers = {"5", "8"};
  auto planned = planned_run(twelve_layers(), config, machine("cpu-2-cores"));
  EXPECT_EQ(planned.status().code(), Exit::kUsage);
  EXPECT_NE(planned.status().message().find("13 in all, and the model has 12 layers"),
            std::string::npos)
      << planned.status().message();
}

// Devices that attend and those with experts work at once: a stage takes what the longer of both
// does. Experts take 1.57 x 10 and 1.57 x 20, attention 0.67 x 20 in both.
TEST(StageLayers, InZebraFollowTheSlowerKind) {
  RunConfig config = run_on("cpu/1000:20,cpu/10:1000,cpu/1000:20,cpu/20:1000");
  config.parallel.layout = LayoutKind::kZebra;
  config.parallel.attention_devices = 1;
  config.parallel.offloaded = {"0"};
  config.parallel.lags = {"1", "1", "1"};
  EXPECT_EQ(layers_of(config), (Layers{8, 4}));
  config.train.devices = {"cpu/1000:30,cpu/10:1000,cpu/1000:60,cpu/5:1000"};
  EXPECT_EQ(layers_of(config), (Layers{8, 4})) << "0.67 x 30 and 0.67 x 60";
}

// A run that measures its devices moves no layers for it.
TEST(StageLayers, StayWhateverIsMeasured) {
  RunConfig config = run_on("cpu/8,cpu/16");
  config.parallel.shares = ShareKind::kMeasured;
  RunSetup setup = run_setup(config);
  const ModelShape shape = twelve_layers().shape;
  const Stages listed = make_run_shape(shape, setup).stages;
  EXPECT_EQ(listed.layer_counts(kLayers), (Layers{8, 4}));
  setup.devices[0].measured_attention = setup.devices[0].measured_experts = 0.001;
  setup.devices[1].measured_attention = setup.devices[1].measured_experts = 0.005;
  setup.deal_attention(config.attention_devices(2));
  EXPECT_EQ(make_run_shape(shape, setup).stages.layers, listed.layers);
}

// Two processes of one device each, of which the second is half as fast: each knows both.
TEST(StageLayers, PlannedAreThoseOfRanks) {
  std::vector<RunConfig> configs = {run_on("cpu/8"), run_on("cpu/16")};
  ClusterSheet cluster;
  cluster.network.gb_s = 1;
  cluster.nodes.assign(2, machine("cpu-2-cores"));
  for (RunConfig& config : configs) config.total_devices = 2;
  auto planned = planned_ranks(twelve_layers(), configs, cluster);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  std::vector<Stages> run(2);
  RankThreads threads(2, {0, 1, 0, 1}, {});
  threads.run([&](RankGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    RunSetup setup = run_setup(configs[rank]);
    ASSERT_TRUE(join_ranks(configs[rank], group, setup).ok());
    run[rank] = make_run_shape(twelve_layers().shape, setup).stages;
  });
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ((*planned)[r].shape.stages.layers, run[r].layers);
    EXPECT_EQ(run[r].layer_counts(kLayers), (Layers{8, 4}));
  }
  auto forecast = forecast_ranks(twelve_layers(), configs, cluster, kFinePlan);
  ASSERT_TRUE(forecast.ok()) << forecast.status().message();
  EXPECT_EQ(forecast->stage_layers, (Layers{8, 4}));
}

// A whole CPU is as fast as its machine has cores.
TEST(StageLayers, FollowTheCoresOfNodes) {
  ClusterSheet cluster;
  cluster.network.gb_s = 1;
  cluster.nodes.assign(2, machine("cpu-2-cores"));
  cluster.nodes[1].host.cores = 4;
  std::vector<RunConfig> configs(2, run_on("cpu"));
  for (RunConfig& config : configs) config.train.threads = 0;
  for (const char* devices : {"cpu", "cpu*2"}) {
    SCOPED_TRACE(devices);
    for (RunConfig& config : configs) {
      config.train.devices = {devices};
      config.total_devices = 2 * std::ssize(config.devices());
    }
    auto planned = planned_ranks(twelve_layers(), configs, cluster);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(planned->front().shape.stages.layer_counts(kLayers), (Layers{4, 8}));
  }
}

// 64 cores are divided by the whole devices; a slowed one has a thread.
TEST(StageLayers, ThreadsAreTheCoresOfTheSheet) {
  MachineSheet sheet = machine("cpu-2-cores");
  sheet.host.cores = 64;
  RunConfig config = run_on("cpu");
  const auto threads_of = [&](const char* devices, int64_t threads) {
    config.train.devices = {devices};
    config.train.threads = threads;
    const PlannedRun planned = planned_run(twelve_layers(), config, sheet).take();
    std::vector<int> of_devices;
    for (const DeviceSetup& device : planned.devices) of_devices.push_back(device.threads);
    return of_devices;
  };
  config.parallel.layout = LayoutKind::kExperts;
  EXPECT_EQ(threads_of("cpu", 0), std::vector<int>{64});
  EXPECT_EQ(threads_of("cpu,cpu/8,cpu", 0), (std::vector<int>{32, 1, 32}));
  EXPECT_EQ(threads_of("cpu*2", 6), (std::vector<int>{3, 3}));
}

// The rates of a sheet are those of all cores: at these rates more cores take no longer. A cluster
// of one node is that machine.
TEST(StageLayers, AStepIsAsLongOnWhicheverMachineItIsPlanned) {
  RunConfig config = run_on("cpu");
  config.train.threads = 0;
  config.parallel.layout = LayoutKind::kExperts;
  MachineSheet sheet = machine("cpu-2-cores");
  const double of_two_s =
      forecast_run(twelve_layers(), config, sheet, kFinePlan).take().step->step_s();
  sheet.host.cores = 64;
  const double step_s =
      forecast_run(twelve_layers(), config, sheet, kFinePlan).take().step->step_s();
  EXPECT_LE(step_s, of_two_s);
  auto node = forecast_ranks(twelve_layers(), {&config, 1}, equal_nodes(1, sheet), kFinePlan);
  ASSERT_TRUE(node.ok()) << node.status().message();
  EXPECT_DOUBLE_EQ(node->step.step_s(), step_s);
}

// GPUs count alike, of whatever kind, and however many threads their processes have for each.
TEST(StageLayers, OfGpusFollowTheirNumber) {
  ClusterSheet cluster;
  cluster.network.gb_s = 12;
  cluster.nodes = {machine("gpu-t4"), machine("gpu-l40s"), machine("gpu-2xa40")};
  RunConfig config = run_on("auto");
  config.train.threads = 12;
  config.train.shards = 2;
  config.total_devices = devices_of_nodes(config, cluster);
  ASSERT_EQ(config.total_devices, 4);
  std::vector<RunConfig> configs(3, config);
  auto planned = planned_ranks(twelve_layers(), configs, cluster);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->front().shape.stages.layer_counts(kLayers), (Layers{6, 6}));
  EXPECT_EQ(planned->front().shape.shard_device, (std::vector<int>{0, 1, 2, 3}));
  cluster.nodes[2] = machine("gpu-a40");
  for (RunConfig& of_rank : configs) of_rank.total_devices = 3;
  planned = planned_ranks(twelve_layers(), configs, cluster);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->front().shape.stages.layer_counts(kLayers), (Layers{8, 4}));
}

}  // namespace
}  // namespace pagoda
