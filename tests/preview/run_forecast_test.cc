// A run planned from its config.json alone: the same shape, memory and bytes as `train` plans with
// its tensors; shares of equal devices that add up; changes that are said to fit do fit.
#include "preview/run_forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cli/sheet_file.h"
#include "plan/machine/model_cost.h"
#include "preview/plan_changes.h"
#include "report/traffic_report.h"
#include "tests/testing/tiny_run.h"
#include "train/saved_layers.h"

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

// A run of the quick start's size on a workstation.
RunConfig workstation_run() {
  RunConfig config;
  config.train.tokens_per_step = 65536;
  config.train.micro_batch_tokens = 4096;
  config.train.save_steps = 0;
  return config;
}

void expect_equal(const RunShape& a, const RunShape& b) {
  EXPECT_EQ(a.num_layers, b.num_layers);
  EXPECT_EQ(a.is_moe, b.is_moe);
  EXPECT_EQ(a.layer_record, b.layer_record);
  EXPECT_EQ(a.num_experts, b.num_experts);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.experts_per_token, b.experts_per_token);
  EXPECT_EQ(a.tied_embeddings, b.tied_embeddings);
  EXPECT_EQ(a.training, b.training);
  EXPECT_EQ(a.dtype_bytes, b.dtype_bytes);
  EXPECT_EQ(a.microbatches, b.microbatches);
  EXPECT_EQ(a.microbatch_tokens, b.microbatch_tokens);
  EXPECT_EQ(a.row_block, b.row_block);
  EXPECT_EQ(a.group_blocks, b.group_blocks);
  EXPECT_EQ(a.devices, b.devices);
  ASSERT_EQ(a.records.size(), b.records.size());
  for (size_t r = 0; r < a.records.size(); ++r) {
    EXPECT_EQ(a.records[r].num_elements, b.records[r].num_elements) << r;
    EXPECT_EQ(a.records[r].layer, b.records[r].layer) << r;
    EXPECT_EQ(a.records[r].expert, b.records[r].expert) << r;
    EXPECT_EQ(a.records[r].device, b.records[r].device) << r;
    EXPECT_EQ(a.records[r].state_bytes, b.records[r].state_bytes) << r;
  }
}

TEST(RunForecast, OfATrainedFamilyIsWhatTrainPlans) {
  for (const StateFormat state : {StateFormat::kFp32, StateFormat::k8Bit}) {
    for (const auto& [devices, group_blocks] : {std::pair{1, 0}, {2, 0}, {1, 5}, {2, 16}}) {
      SCOPED_TRACE(testing::Message() << devices << " devices, groups of " << group_blocks);
      TinyRun run;
      run.config().plan.group_blocks = group_blocks;
      run.config().optim.state = state;
      run.config().train.devices = cpus(devices);
      run.use_minimum_budgets();
      const ModelSizes model = read_model_sizes(run.config().model.path).take();
      MachineSheet sheet = machine("cpu-2-cores");
      const DeviceRun planned = device_run(model, run.config(), sheet).take();
      SessionOptions options = session_options(run.config());
      const MemoryPlan memory = Session::plan(*model.trained, options).take();
      options.size.group_blocks = memory.group_blocks;
      const RunShape shape = make_run_shape(model_shape(*model.trained), options);
      expect_equal(planned.shape, shape);
      const RunForecast plan = forecast_run(model, run.config(), sheet, kFinePlan).take();
      EXPECT_TRUE(plan.fits.ok()) << plan.fits.message();
      EXPECT_EQ(plan.least.device_bytes, memory.min_device_bytes);
      EXPECT_EQ(plan.least.host_bytes, memory.min_host_bytes);
      EXPECT_EQ(plan.step->host_bytes, memory.host_slot_bytes);
      EXPECT_EQ(plan.step->traffic, predict_traffic(shape, PageTable(shape), memory).step);
      EXPECT_GT(plan.step->traffic.fetch.bytes, 0);
      run.config().memory.device = MemorySize::of_bytes(memory.min_device_bytes - 1);
      EXPECT_EQ(forecast_run(model, run.config(), sheet, kFinePlan)->fits.code(),
                Exit::kDoesNotFit);
    }
  }
}

// A device's part of the step has fewer microbatches than the step has chunks.
TEST(RunForecast, DividesChunksAmongDevices) {
  TinyRun run;
  run.config().train.chunks = 2;  // of the step's two microbatches
  const ModelSizes model = read_model_sizes(run.config().model.path).take();
  MachineSheet sheet = machine("cpu-2-cores");
  sheet.device.count = 2;
  sheet.link.gb_s = 10;
  const auto planned = device_run(model, run.config(), sheet);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned.value().shape.microbatches, 1);
  EXPECT_EQ(planned.value().shape.sums.chunks, 1);
}

// Layers that keep what their backward reads, and that a step is shorter for it.
TEST(RunForecast, KeepsAsManyLayersAsTrainDoes) {
  for (const int64_t devices : {1, 2}) {
    TinyRun run;
    run.config().train.devices = cpus(devices);
    run.config().plan.group_blocks = 1;  // whatever the budget
    const ModelSizes model = read_model_sizes(run.config().model.path).take();
    const ModelConfig& trained = *model.trained;
    SessionOptions options = session_options(run.config());
    const int64_t whole = Session::plan(trained, options).take().whole_device_bytes;
    const int64_t all = most_kept_bytes(trained, options), layers = trained.num_layers;
    double backward_s = std::numeric_limits<double>::infinity();
    for (int64_t n = 0; n <= layers; ++n) {
      SCOPED_TRACE(testing::Message() << n << " layers, " << devices << " devices");
      options.device_bytes = whole + all * (2 * n + 1) / (2 * layers);
      run.config().memory.device = MemorySize::of_bytes(options.device_bytes.of(0));
      const MemoryPlan memory = Session::plan(trained, options).take();
      const RunForecast plan =
          forecast_run(model, run.config(), machine("cpu-2-cores"), kFinePlan).take();
      EXPECT_EQ(saved_layers(trained, options, memory), n);
      EXPECT_EQ(plan.step->saved_layers, n);
      EXPECT_LT(plan.step->backward.seconds, backward_s);
      backward_s = plan.step->backward.seconds;
    }
  }
}

// What four devices have adds up to what one has, but for what each has of its own: dense weights.
TEST(RunForecast, SharesOfEqualDevicesAddUp) {
  const ModelSizes model = published("olmoe-1b-7b");
  const RunConfig config = workstation_run();
  MachineSheet box = machine("gpu-4x48gb");
  const DeviceRun share = device_run(model, config, box).take();
  box.device.count = 1;
  const DeviceRun whole = device_run(model, config, box).take();
  EXPECT_EQ(share.peers, 4);
  EXPECT_EQ(4 * share.shape.num_experts, whole.shape.num_experts);
  EXPECT_EQ(4 * share.shape.microbatches, whole.shape.microbatches);
  int64_t all = 0, dense = 0, fourth = 0, states = 0, whole_states = 0;
  for (const RecordShape& r : whole.shape.records) {
    all += r.num_elements;
    dense += r.expert < 0 ? r.num_elements : 0;
    whole_states += r.state_bytes;
  }
  for (const RecordShape& r : share.shape.records) {
    fourth += r.num_elements;
    states += r.state_bytes;
  }
  EXPECT_EQ(4 * fourth, all + 3 * dense);
  EXPECT_NEAR(static_cast<double>(4 * states), static_cast<double>(whole_states), 1e4);
  EXPECT_EQ(4 * share.budget.host_bytes / 4, whole.budget.host_bytes / 4);
  // Rows of an expert are those of all devices' tokens.
  EXPECT_EQ(share.shape.microbatches * share.shape.experts_per_token * whole.shape.num_experts,
            whole.shape.microbatches * whole.shape.experts_per_token * share.shape.num_experts);
}

TEST(RunForecast, RefusesWhatDevicesDoNotDivide) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  MachineSheet box = machine("gpu-4x48gb");
  box.device.count = 3;
  EXPECT_EQ(forecast_run(model, config, box, kFinePlan).status().code(), Exit::kUsage);
  box.device.count = 4;
  config.train.tokens_per_step = 4096 * 6;
  const Status status = forecast_run(model, config, box, kFinePlan).status();
  EXPECT_EQ(status.code(), Exit::kUsage);
  EXPECT_NE(status.message().find("train.tokens_per_step"), std::string::npos);
}

// Time is at least that of the products at their rate, bytes over each link's rate, updates at
// theirs; and the model's operations per second are below the peak.
TEST(RunForecast, IsNotFasterThanItsParts) {
  const MachineSheet sheet = machine("gpu-24gb");
  const ModelSizes model = published("olmoe-1b-7b");
  const RunForecast plan = forecast_run(model, workstation_run(), sheet, kCoarsePlan).take();
  ASSERT_TRUE(plan.step) << plan.fits.message();
  const double step_s = plan.step->step_s();
  EXPECT_GE(step_s, plan.flops / (sheet.device.gemm_tflops * 1e12) * 0.99);
  EXPECT_GE(step_s, static_cast<double>(plan.step->traffic.upload.bytes) / 25e9 * 0.99);
  EXPECT_GE(step_s, static_cast<double>(plan.parameters.total) * 26 / 60e9 * 0.99);
  EXPECT_LT(plan.mfu(), sheet.device.gemm_tflops / sheet.device.peak_tflops);
  EXPECT_GT(plan.mfu(), 0);
}

// Rows that go to other devices, and rings, take time of a link that is not computing: what it is
// halves where links are twice as fast, and there is none on one device.
TEST(RunForecast, WaitsForLinksApartFromComputing) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  MachineSheet sheet = machine("gpu-4x48gb");
  sheet.link.latency_us = 0;
  const RunForecast slow = forecast_run(model, config, sheet, kSearchPlan).take();
  sheet.link.gb_s *= 2;
  const RunForecast quick = forecast_run(model, config, sheet, kSearchPlan).take();
  const auto busy = [](const RunForecast& plan, Resource r) { return plan.step->busy_s(r); };
  EXPECT_GT(busy(slow, Resource::kLinks), 0);
  EXPECT_NEAR(busy(quick, Resource::kLinks), busy(slow, Resource::kLinks) / 2,
              0.02 * busy(slow, Resource::kLinks));
  EXPECT_NEAR(busy(quick, Resource::kCompute), busy(slow, Resource::kCompute),
              0.02 * busy(slow, Resource::kCompute));
  EXPECT_LE(busy(slow, Resource::kLinks) + busy(slow, Resource::kCompute),
            (1 + 1e-9) * slow.step->step_s());
  const RunForecast alone = forecast_run(model, config, machine("gpu-24gb"), kSearchPlan).take();
  EXPECT_EQ(busy(alone, Resource::kLinks), 0);
}

// What does not fit is counted all the same, and the changes named make it fit.
TEST(PlanChanges, FitWhatDoesNot) {
  const MachineSheet sheet = machine("gpu-24gb");
  RunConfig config = workstation_run();
  config.train.micro_batch_tokens = config.train.tokens_per_step = 1 << 20;
  const ModelSizes model = published("qwen3-30b-a3b");
  const RunForecast plan = forecast_run(model, config, sheet, kCoarsePlan).take();
  EXPECT_EQ(plan.fits.code(), Exit::kDoesNotFit);
  EXPECT_FALSE(plan.step);
  EXPECT_EQ(plan.parameters.total, 30532122624);
  const std::vector<PlanChange> changes = fitting_changes(model, config, sheet);
  ASSERT_FALSE(changes.empty());
  EXPECT_NE(changes.front().text.find("micro_batch_tokens"), std::string::npos);
  for (const PlanChange& change : changes) {
    SCOPED_TRACE(change.text);
    RunConfig changed = config;
    MachineSheet machine = sheet;
    change.apply(changed, machine);
    EXPECT_TRUE(forecast_memory(model, changed, machine)->fits.ok());
  }
  // Twice that microbatch does not.
  RunConfig changed = config;
  MachineSheet same = sheet;
  changes.front().apply(changed, same);
  changed.train.micro_batch_tokens *= 2;
  EXPECT_FALSE(forecast_memory(model, changed, same)->fits.ok());
}

TEST(PlanChanges, AStoreThatIsTooLargeWantsShorterStatesOrDrives) {
  MachineSheet sheet = machine("gpu-24gb");
  sheet.disk.drives = 1;
  sheet.disk.size = MemorySize::of_bytes(400000000000);
  const ModelSizes model = published("qwen3-30b-a3b");
  RunConfig config = workstation_run();
  config.train.save_steps = 500;
  EXPECT_FALSE(forecast_memory(model, config, sheet)->fits.ok());
  const std::vector<PlanChange> changes = fitting_changes(model, config, sheet);
  ASSERT_FALSE(changes.empty());
  for (const PlanChange& change : changes) {
    RunConfig changed = config;
    MachineSheet machine = sheet;
    change.apply(changed, machine);
    EXPECT_TRUE(forecast_memory(model, changed, machine)->fits.ok()) << change.text;
  }
}

TEST(PlanChanges, HelpAsTheySay) {
  const MachineSheet sheet = machine("gpu-24gb");
  const ModelSizes model = published("olmoe-1b-7b");
  const RunConfig config = workstation_run();
  const double before = forecast_run(model, config, sheet, kCoarsePlan)->tokens_per_s();
  const std::vector<HelpfulChange> changes = advise(model, config, sheet, kCoarsePlan).helpful;
  ASSERT_FALSE(changes.empty());
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_NEAR(changes[i].tokens_per_s / before - 1, changes[i].gain, 1e-9) << changes[i].text;
    if (i > 0) {
      EXPECT_GE(changes[i - 1].gain, changes[i].gain);
    }
  }
}

}  // namespace
}  // namespace pagoda
