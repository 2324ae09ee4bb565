// One cost model for a machine and for a cluster: a GPU planned as a machine, task by task, and as
// a cluster of one, pass by pass, takes the same step; and its times are credible where Piper
// measured them: the throughput of experts by their rows (Figure 4), the efficiency of one layer on
// one node (Figure 11), and the most that recomputation leaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/sheet_file.h"
#include "kernels/ops.h"
#include "plan/machine/pass_cost.h"
#include "plan/search/mesh_search.h"
#include "preview/model_sizes.h"
#include "preview/run_forecast.h"

namespace pagoda {
namespace {

std::string configs(const std::string& name) {
  return std::string(PAGODA_GOLDEN_DIR) + "/../../configs/" + name;
}

MachineSheet machine(const std::string& name) {
  return read_machine_sheet(configs("machines/" + name + ".toml")).take();
}

ModelSizes published(const std::string& name) {
  return read_model_sizes(configs("models/" + name + ".json")).take();
}

constexpr int64_t kLen = 4096;

double machine_step_s(const ModelSizes& model, const MachineSheet& sheet, int64_t sequences,
                      int64_t microbatches) {
  RunConfig config;
  config.data.sequence_len = kLen;
  config.train.tokens_per_step = sequences * kLen;
  config.train.micro_batch_tokens = sequences * kLen / microbatches;
  config.train.save_steps = 0;
  const RunForecast run = forecast_run(model, config, sheet, kFinePlan).take();
  EXPECT_TRUE(run.step->state_on_device);
  EXPECT_EQ(run.step->saved_layers, model.shape.num_layers());
  return run.step->step_s();
}

double cluster_step_s(const ModelSizes& model, const MachineSheet& sheet, int64_t sequences,
                      int64_t microbatches) {
  ClusterSheet cluster;
  cluster.nodes = {sheet};
  cluster.network.gb_s = 1;
  Strategy strategy;
  strategy.mesh = {1, 1, 1};
  strategy.batch = {kLen, sequences / microbatches, microbatches, SequencesOf::kRank};
  strategy.microbatches = static_cast<int32_t>(microbatches);
  strategy.state = state_choices().front();
  const MeshStep step = mesh_step(model_cost(model.shape).take(), cluster, strategy).take();
  EXPECT_EQ(step.stages.front().recomputed_layers, 0);
  return step.step_s();
}

// Everything stays on the GPU, so nothing but work takes time.
TEST(ClusterOfOne, TakesTheStepOfTheMachine) {
  MachineSheet sheet = machine("gpu-8x80gb");
  sheet.device.count = 1;
  sheet.device.memory = sheet.host.memory = MemorySize::of_bytes(int64_t{1} << 46);
  for (const char* name :
       {"mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b", "gpt-oss-20b", "deepseek-v2-lite"}) {
    const ModelSizes model = published(name);
    for (const int64_t microbatches : {1, 4, 16}) {
      const double alone_s = machine_step_s(model, sheet, 256, microbatches);
      const double of_one_s = cluster_step_s(model, sheet, 256, microbatches);
      std::printf("%-17s %2lld microbatches: machine %.4f s, cluster of one %.4f s, %+.2f %%\n",
                  name, (long long)microbatches, alone_s, of_one_s, 100 * (of_one_s / alone_s - 1));
      EXPECT_NEAR(of_one_s, alone_s, 0.02 * alone_s) << name << ", " << microbatches;
    }
  }
}

// A trainer's groups of rows are those that passes count.
TEST(ClusterOfOne, CountsTheGroupsOfTheTrainer) {
  const ModelCost model = model_cost(published("olmoe-1b-7b").shape).take();
  const MachineSheet gpu = machine("gpu-24gb"), cpu = machine("cpu-2-cores");
  const auto rows = static_cast<double>(kMostTogether * kRowBlock);
  EXPECT_EQ(PassClock(gpu, model, kLen).grouped(rows, 1).groups, 1);
  EXPECT_EQ(PassClock(gpu, model, kLen).grouped(rows + 1, 1).groups, 2);
  EXPECT_EQ(PassClock(cpu, model, kLen).grouped(rows, 1).groups, kMostTogether);
}

// A GPU on which operations alone take time, at its peak.
MachineSheet operations_only() {
  constexpr double kAtOnce = 1e200;
  MachineSheet sheet = machine("gpu-8x80gb");
  sheet.device.count = 1;
  sheet.device.peak_tflops = sheet.device.gemm_tflops = sheet.device.attention_tflops = 100;
  sheet.device.attention_half_tokens = 0;
  sheet.device.memory_gb_s = sheet.device.weight_gb_s = kAtOnce;
  sheet.device.launch_us = 0;
  return sheet;
}

// Attention computes a third of its products again and an expert two ninths, which leaves three
// quarters and nine elevenths of the peak.
TEST(ClusterOfOne, RecomputationLeavesAtMostFourFifths) {
  ClusterProfile cluster;
  cluster.in_node = cluster.in_switch = cluster.between_switches = {0, 1};
  for (const char* name : {"mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b", "deepseek-v3"}) {
    const ModelCost model = model_cost(published(name).shape).take();
    MeshChoices choices;
    const PipelineBatch batch{1024, 8, 1, SequencesOf::kRank};
    const double kept =
        forecast_mesh(model, {1, 1, 1}, batch, cluster, operations_only(), choices)->mfu;
    choices.recomputed.assign(model.layers.size(), 1);
    const double again =
        forecast_mesh(model, {1, 1, 1}, batch, cluster, operations_only(), choices)->mfu;
    std::printf("%-17s at most %.1f %% of the peak, %.1f %% with recomputation\n", name, 100 * kept,
                100 * again);
    EXPECT_GT(again, 0.75);
    EXPECT_LT(again, 0.82);
    EXPECT_GT(kept, 0.97);
  }
}

// TFLOP/s of an expert's products, forward and backward, for so many rows.
double expert_tflops(const ModelCost& model, double rows) {
  const MachineSheet sheet = machine("gpu-8x80gb");
  const PassClock clock(sheet, model, kLen);
  const LayerCost& layer = model.layers.back();
  const double seconds = clock.experts(layer, false).seconds(clock.grouped(rows, 1)).both_s();
  const double flops = 3 * 2 * static_cast<double>(layer.expert_parameters) * rows;
  return flops / seconds / 1e12;
}

// Few rows are slow, as weights are read for them; wide experts are faster than narrow ones; and
// from a few thousand rows on nothing is gained.
TEST(ClusterOfOne, ExpertsAreFasterWithRowsAsInPipersFigure4) {
  const ModelCost wide = model_cost(published("mixtral-8x7b").shape).take();
  const ModelCost narrow = model_cost(published("qwen3-30b-a3b").shape).take();
  double before = 0;
  for (const double rows : {16, 64, 256, 1024, 4096, 16384}) {
    const double fast = expert_tflops(wide, rows), slow = expert_tflops(narrow, rows);
    std::printf("%6.0f rows of an expert: %5.1f TFLOP/s (4096 x 14336), %5.1f (2048 x 768)\n", rows,
                fast, slow);
    EXPECT_GT(fast, slow);
    EXPECT_GE(fast, (1 - 1e-9) * before);
    before = fast;
  }
  EXPECT_LT(expert_tflops(wide, 16), 0.05 * expert_tflops(wide, 4096));
  EXPECT_GT(expert_tflops(wide, 1024), 0.7 * expert_tflops(wide, 4096));
  EXPECT_NEAR(expert_tflops(wide, 16384), expert_tflops(wide, 4096), 1e-6);
}

// The MFU of one layer with experts over the devices of a node.
double layer_mfu(const std::string& name) {
  ModelCost model = model_cost(published(name).shape).take();
  model.layers.assign(1, model.layers.back());
  model.embedding_parameters = model.head_parameters = 0;
  ClusterSheet node;
  node.nodes = {machine("gpu-8x80gb")};
  node.network.gb_s = 1;
  return forecast_mesh(model, {1, 8, 1}, {kLen, 4, 1, SequencesOf::kRank}, cluster_profile(node),
                       node.nodes.front())
      ->mfu;
}

// Large experts are trained most efficiently and fine-grained ones least.
TEST(ClusterOfOne, LargeExpertsAreMostEfficientAsInPipersFigure11) {
  double before = 1;
  for (const char* name : {"mixtral-8x7b", "deepseek-v3", "olmoe-1b-7b"}) {
    const double mfu = layer_mfu(name);
    std::printf("%-17s one layer on a node: MFU %.1f %%\n", name, 100 * mfu);
    EXPECT_LT(mfu, before) << name;
    before = mfu;
  }
  const double qwen = layer_mfu("qwen3-30b-a3b");
  std::printf("%-17s one layer on a node: MFU %.1f %%\n", "qwen3-30b-a3b", 100 * qwen);
  EXPECT_LT(qwen, layer_mfu("deepseek-v3"));
}

}  // namespace
}  // namespace pagoda
