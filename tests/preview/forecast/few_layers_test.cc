// Steps that are forecast from few layers, beside those of all layers.
#include "preview/few_layers.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "base/bytes.h"
#include "cli/sheet_file.h"
#include "preview/zebra_choice.h"
#include "tests/preview/published_configs.h"

namespace pagoda {
namespace {

ModelSizes model_of(int64_t layers, int64_t experts) {
  ModelSizes model =
      with_layers(read_model_sizes(configs("models/qwen3-30b-a3b.json")).take(), layers);
  model.shape.num_experts = model.config.num_experts = experts;
  return model;
}

struct Case {
  int64_t nodes, devices, stages, chunks;
  PipelineOrder order = PipelineOrder::kBreadthFirst;
  const char* memory = "auto";  // of a device
  int64_t copies = 1;
  bool zebra = false;

  std::string text() const {
    return strf("%lld nodes of %lld, %lld stages, %lld copies, %lld chunks, order %d, memory %s%s",
                (long long)nodes, (long long)devices, (long long)stages, (long long)copies,
                (long long)chunks, static_cast<int>(order), memory, zebra ? ", zebra" : "");
  }
};

ClusterSheet cluster_of(const Case& c) {
  ClusterSheet cluster;
  cluster.network.gb_s = 40;
  cluster.network.latency_us = 15;
  MachineSheet node = read_machine_sheet(configs("machines/gpu-8x80gb.toml")).take();
  node.device.count = c.devices;
  cluster.nodes.assign(static_cast<size_t>(c.nodes), node);
  return cluster;
}

std::vector<RunConfig> configs_of(const Case& c, const ClusterSheet& cluster) {
  RunConfig config;
  config.total_devices = devices_of_nodes(config, cluster);
  config.data.sequence_len = config.train.micro_batch_tokens = 4096;
  config.train.shards = div_ceil(config.total_devices, c.stages);
  config.train.chunks = c.chunks;
  config.train.tokens_per_step = 2 * c.chunks * config.train.shards * 4096;
  config.train.save_steps = 0;
  config.memory.device = MemorySize::parse(c.memory).take();
  if (c.stages > 1) {
    config.parallel.layout = LayoutKind::kPipeline;
    config.parallel.stages = c.stages;
    config.parallel.order = c.order;
  }
  if (c.zebra) config.parallel.layout = LayoutKind::kZebra;
  config.parallel.copies = c.copies;
  if (c.copies > 1) config.train.expert_shards = config.train.shards;
  return std::vector(cluster.nodes.size(), config);
}

// With what zebra leaves to the planner in it, and as many experts in all layers.
std::vector<RunConfig> as_planned(const ModelSizes& model, std::vector<RunConfig> configs,
                                  const ClusterSheet& cluster) {
  if (!configs.front().zebra()) return configs;
  auto planned = planned_ranks(model, configs, cluster);
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  for (RunConfig& config : configs) {
    write_zebra(planned->front().shape, config);
    offload_alike(model.shape, config);
  }
  return configs;
}

// A plan names changes that gain a fiftieth (preview/cluster_changes.h), so the forecast must
// not be further off, and in zebra's many stages little more.
TEST(FewLayers, TakeTheStepOfAll) {
  constexpr auto kAlternating = PipelineOrder::kOneForwardOneBackward;
  constexpr auto kBreadthFirst = PipelineOrder::kBreadthFirst;
  const Case cases[] = {{2, 2, 1, 1},
                        {4, 1, 1, 1},
                        {2, 4, 1, 1},
                        {2, 2, 2, 4},
                        {2, 2, 2, 4, kAlternating},
                        {4, 1, 4, 8, kAlternating},
                        {2, 2, 1, 1, kBreadthFirst, "10GiB"},
                        {2, 2, 1, 1, kBreadthFirst, "auto", 2},
                        {2, 2, 1, 1, kBreadthFirst, "auto", 4},
                        {2, 2, 1, 1, kBreadthFirst, "18GiB", 2},
                        {2, 4, 2, 4, kAlternating, "auto", 2},
                        {2, 2, 1, 4, kBreadthFirst, "auto", 1, true},
                        {2, 4, 1, 4, kBreadthFirst, "auto", 2, true},
                        {2, 2, 2, 4, kBreadthFirst, "auto", 1, true},
                        {4, 2, 4, 8, kBreadthFirst, "auto", 1, true},
                        {4, 2, 2, 4, kBreadthFirst, "auto", 2, true},
                        // Stages of two devices and of one, and of three and two.
                        {3, 1, 2, 4},
                        {3, 1, 2, 8, kBreadthFirst, "18GiB"},
                        {5, 1, 2, 4},
                        {5, 1, 2, 4, kBreadthFirst, "auto", 1, true}};
  const ModelSizes model = model_of(16, 32);
  ASSERT_TRUE(has_alike_layers(model.shape));
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text());
    const ClusterSheet cluster = cluster_of(c);
    const std::vector<RunConfig> runs = as_planned(model, configs_of(c, cluster), cluster);
    auto all = forecast_ranks(model, runs, cluster, kCoarsePlan);
    ASSERT_TRUE(all.ok()) << all.status().message();
    auto few = forecast_few_layers(model, runs, cluster, kCoarsePlan);
    ASSERT_TRUE(few.ok()) << few.status().message();
    const double ratio = few->step.step_s() / all->step.step_s();
    std::printf("%s: all layers %.4f s, few %.4f s, %.3f\n", c.text().c_str(), all->step.step_s(),
                few->step.step_s(), ratio);
    EXPECT_NEAR(ratio, 1, c.zebra && c.stages > 2 ? 0.03 : 0.02);
    EXPECT_EQ(few->stage_layers, all->stage_layers);
    EXPECT_EQ(few->tokens, all->tokens);
    EXPECT_DOUBLE_EQ(few->flops, all->flops);
    EXPECT_DOUBLE_EQ(few->peak_flops_per_s, all->peak_flops_per_s);
    ASSERT_EQ(few->step.device_busy_s.size(), all->step.device_busy_s.size());
    for (size_t d = 0; d < all->step.device_busy_s.size(); ++d) {
      const double busy_s = all->step.device_busy_s[d];
      EXPECT_NEAR(few->step.device_busy_s[d], busy_s, 0.10 * busy_s) << "device " << d;
    }
    ASSERT_EQ(few->step.ranks.size(), all->step.ranks.size());
    for (size_t r = 0; r < all->step.ranks.size(); ++r) {
      EXPECT_EQ(few->budgets[r].device_bytes, all->budgets[r].device_bytes);
      EXPECT_EQ(few->step.ranks[r].least.host_bytes, all->step.ranks[r].least.host_bytes);
      const auto sent = static_cast<double>(all->step.ranks[r].sent_bytes);
      EXPECT_NEAR(static_cast<double>(few->step.ranks[r].sent_bytes), sent, 0.10 * sent);
    }
  }
}

StepForecast step_of(double forward_s, double backward_s) {
  StepForecast step;
  step.forward.seconds = step.forward.busy_s[0] = forward_s;
  step.backward.seconds = step.backward.busy_s[0] = backward_s;
  return step;
}

// A step of all layers, on devices of 1e15 operations a second together.
Result<StepForecast> step_of_all(const StepForecast& first, const StepForecast& second,
                                 double further, double operations) {
  RanksForecast all;
  all.step = second;
  all.peak_flops_per_s = 1e15;
  all.flops = operations;
  RETURN_IF_ERROR(continue_step(first, further, all));
  return all.step;
}

// 2 of 48 layers take 3 s, 4 of them 4.5 s: 23 times as much is beyond the first.
TEST(FewLayers, GoOnAsTheSecondRunBegan) {
  auto all = step_of_all(step_of(1, 2), step_of(1.5, 3), 23, 18.75e15);
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_DOUBLE_EQ(all->forward.seconds, 1 + 23 * 0.5);
  EXPECT_DOUBLE_EQ(all->backward.seconds, 2 + 23 * 1.0);
  EXPECT_DOUBLE_EQ(all->forward.busy_s[0], 12.5);
  EXPECT_DOUBLE_EQ(all->backward.busy_s[0], 25);
}

TEST(FewLayers, ThatPageMoreThanTwiceAsManyTellNothing) {
  const StepForecast first = step_of(1, 2);
  // One is as long, the other shorter, and there are no operations that forbid it.
  EXPECT_EQ(step_of_all(first, step_of(1, 2), 23, 0).status().code(), Exit::kUsage);
  EXPECT_EQ(step_of_all(first, step_of(0.9, 2), 23, 0).status().code(), Exit::kUsage);
  EXPECT_TRUE(step_of_all(first, step_of(1.1, 2), 23, 0).ok());
  // One is little longer: 3 + 23 x 0.2 = 7.6 s for operations that take 21.2 s at least.
  EXPECT_EQ(step_of_all(first, step_of(1.1, 2.1), 23, 21.2e15).status().code(), Exit::kUsage);
  EXPECT_EQ(step_of_all(first, step_of(1.1, 2.1), 23, 7.7e15).status().code(), Exit::kUsage);
  EXPECT_TRUE(step_of_all(first, step_of(1.1, 2.1), 23, 7.5e15).ok());
  // Devices compute 0.2 s more in it: 3 + 23 x 0.2 = 7.6 s, in which they would be busy for 12.2 s;
  // or 0.02 s more: for 8.06 s, as long as the step is then.
  StepForecast busier = step_of(1.1, 2.1);
  busier.backward.busy_s[0] += 0.2;
  EXPECT_EQ(step_of_all(first, busier, 23, 0).status().code(), Exit::kUsage);
  StepForecast a_little = step_of(1.1, 2.1);
  a_little.backward.busy_s[0] += 0.02;
  EXPECT_NEAR(step_of_all(first, a_little, 23, 0)->step_s(), 8.06, 1e-9);
}

// Four layers with experts leave 5 + 6 + 6 + 5 = 22: five and a half each, rounded up.
TEST(FewLayers, LeaveAsManyExpertsWhereAttentionIs) {
  ModelSizes model = model_of(5, 32);
  model.shape.is_moe[0] = 0;
  RunConfig config;
  config.parallel.offloaded = {"0", "5", "6", "6", "5"};
  offload_alike(model.shape, config);
  EXPECT_EQ(config.parallel.offloaded.size(), 5u) << "it is no zebra";
  config.parallel.layout = LayoutKind::kZebra;
  offload_alike(model.shape, config);
  EXPECT_EQ(config.parallel.offloaded, std::vector<std::string>{"6"});
  config.parallel.offloaded = {"7"};
  offload_alike(model.shape, config);
  EXPECT_EQ(config.parallel.offloaded, std::vector<std::string>{"7"});
  config.parallel.offloaded = {"auto"};
  offload_alike(model.shape, config);
  EXPECT_TRUE(config.auto_offloaded());
}

TEST(FewLayers, AreAlikeWithFewDenseOnes) {
  ModelSizes model = model_of(16, 32);
  model.shape.is_moe[0] = model.shape.is_moe[1] = 0;
  EXPECT_TRUE(has_alike_layers(model.shape));
  model.shape.is_moe[2] = 0;
  EXPECT_FALSE(has_alike_layers(model.shape));
  ModelSizes convolves = model_of(16, 32);
  convolves.shape.is_conv.assign(16, 0);
  convolves.shape.is_conv[3] = 1;
  EXPECT_FALSE(has_alike_layers(convolves.shape));
}

TEST(FewLayers, AreInTheRatioOfAll) {
  using Layers = std::vector<int64_t>;
  EXPECT_EQ(few_layers(Layers{48}, false), Layers{2});
  EXPECT_EQ(few_layers(Layers{48}, true), Layers{3});
  EXPECT_EQ(few_layers(Layers{12, 6}, true), (Layers{4, 2}));
  EXPECT_EQ(few_layers(Layers{12, 12, 12, 12}, false), (Layers{1, 1, 1, 1}));
  EXPECT_EQ(few_layers(Layers{6, 6, 5, 5}, false), (Layers{1, 1, 1, 1}));
  EXPECT_EQ(few_layers(Layers{11, 5}, false), (Layers{2, 1}));
  EXPECT_EQ(few_layers(Layers{10, 4, 7}, false), (Layers{3, 1, 2}));  // 2.5 and 1.75
  EXPECT_EQ(few_layers(Layers{7, 5}, false), (Layers{1, 1}));
}

TEST(FewLayers, TellAllOfEqualStagesOrInTurns) {
  using Layers = std::vector<int64_t>;
  for (const auto order : {PipelineOrder::kGpipe, PipelineOrder::kOneForwardOneBackward}) {
    EXPECT_TRUE(tell_all(order, Layers{48}));
    EXPECT_TRUE(tell_all(order, Layers{6, 6, 5, 5}));
    EXPECT_FALSE(tell_all(order, Layers{7, 5}));
  }
  EXPECT_TRUE(tell_all(PipelineOrder::kBreadthFirst, Layers{7, 5}));
}

}  // namespace
}  // namespace pagoda
