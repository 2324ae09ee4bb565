// Times that a GPU's sheet gives a run, credible where Piper measured them: the throughput of
// experts by their rows (Figure 4), the efficiency of one layer on one node (Figure 11), and the
// most that recomputation leaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/sheet_file.h"
#include "kernels/ops.h"
#include "plan/machine/work_cost.h"
#include "preview/model_sizes.h"
#include "preview/run_forecast.h"
#include "tests/preview/published_configs.h"

namespace pagoda {
namespace {

constexpr int64_t kLen = 4096;

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

RunForecast step_of(const ModelSizes& model, const MachineSheet& sheet, int64_t len,
                    int64_t sequences) {
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = len;
  config.train.tokens_per_step = sequences * len;
  config.train.save_steps = 0;
  return forecast_run(model, config, sheet, kFinePlan).take();
}

// Attention computes a third of its products again and an expert two ninths, which leaves three
// quarters and nine elevenths of the peak, for a step that saves no layer.
TEST(GpuTimes, RecomputationLeavesAtMostFourFifths) {
  for (const char* name : {"mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b"}) {
    const ModelSizes model = published(name);
    MachineSheet sheet = operations_only();
    sheet.device.adam_gb_s = sheet.host.copy_gb_s = sheet.host.adam_gb_s = 1e200;
    sheet.host.memory = MemorySize::of_bytes(int64_t{1} << 46);
    sheet.device.memory = MemorySize::of_bytes(int64_t{1} << 46);
    const RunForecast kept = step_of(model, sheet, 1024, 64);
    ASSERT_EQ(kept.step->saved_layers, model.shape.num_layers());
    sheet.device.memory = MemorySize::of_bytes(
        static_cast<int64_t>(static_cast<double>(kept.least.device_bytes) / kAutoGpu) + 1);
    const RunForecast again = step_of(model, sheet, 1024, 64);
    ASSERT_EQ(again.step->saved_layers, 0);
    std::printf("%-17s at most %.1f %% of the peak, %.1f %% with recomputation\n", name,
                100 * kept.mfu(), 100 * again.mfu());
    EXPECT_GT(again.mfu(), 0.72);
    EXPECT_LT(again.mfu(), 0.82);
    EXPECT_GT(kept.mfu(), 0.95);
  }
}

// TFLOP/s of an expert's products, forward and backward, for so many rows.
double expert_tflops(const ModelCost& model, double rows) {
  const MachineSheet sheet = machine("gpu-8x80gb");
  const LayerCost& layer = model.layers.back();
  const LayerWork work = layer_work(layer, {static_cast<double>(model.hidden_size), kLen}, 0);
  const double groups = std::ceil(rows / static_cast<double>(kMostTogether * kRowBlock));
  double seconds = 0;
  for (const Work& pass : {work.expert, work.expert_backward}) {
    seconds += WorkClock(sheet, kLen).cost(pass, groups, groups).seconds(rows);
  }
  const double flops = 3 * 2 * static_cast<double>(layer.expert_parameters) * rows;
  return flops / seconds / 1e12;
}

// Few rows are slow, as weights are read for them; wide experts are faster than narrow ones; and
// from a few thousand rows on nothing is gained.
TEST(GpuTimes, ExpertsAreFasterWithRowsAsInPipersFigure4) {
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

// The MFU of one layer with experts over the devices of a node, by the tasks of a step.
double layer_mfu(const std::string& name) {
  ModelSizes model = published(name);
  model.shape.is_moe.assign(1, 1);
  model.config.num_layers = 1;
  model.shape.vocab_size = model.config.vocab_size = 8;
  const RunForecast step = step_of(model, machine("gpu-8x80gb"), kLen, 32);
  EXPECT_EQ(step.devices.size(), 8u);
  return step.mfu();
}

// Large experts are trained most efficiently and fine-grained ones least.
TEST(GpuTimes, LargeExpertsAreMostEfficientAsInPipersFigure11) {
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
