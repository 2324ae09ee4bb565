// `pagoda bench machine` on a GPU that is made up (tests/cuda/fake_cuda.h), whose kernels are the
// CPU's: the sheet is one of a GPU, everything went through it, and nothing of it is left. How fast
// anything was is not asked.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"
#include "bench/sheet/machine.h"
#include "bench/sheet/run_profile.h"
#include "config/usable_gpu.h"
#include "plan/machine/device_profile.h"
#include "plan/step/task_table.h"
#include "preview/run_forecast.h"
#include "preview/this_machine.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

constexpr int64_t kBytes = 16 * kMiB;

class CudaBench : public testing::Test {
 protected:
  ~CudaBench() override {
    const fake_cuda::Counters left = fake_cuda::counters();
    EXPECT_EQ(left.streams + left.events + left.allocated_bytes + left.pinned_bytes, 0);
  }
  Result<MachineSheet> measure() {
    MachineBench bench;
    bench.directory = dir_.path();
    bench.rounds = 1;
    bench.threads = 2;
    bench.bytes = kBytes;
    bench.gpu = usable_gpu().gpu;
    CHECK(bench.gpu);
    return measure_machine(bench);
  }

  TempDir dir_;
};

TEST_F(CudaBench, TheSheetIsOfTheGpu) {
  fake_cuda::start({.memory_bytes = 2 * kGiB});
  auto sheet = measure();
  ASSERT_TRUE(sheet.ok()) << sheet.status().message();
  EXPECT_TRUE(sheet->gpu());
  EXPECT_EQ(sheet->machine.source, SheetSource::kMeasured);
  EXPECT_NE(sheet->machine.name.find("Fake 0"), std::string::npos);
  EXPECT_EQ(sheet->device_bytes(), 2 * kGiB);
  EXPECT_EQ(sheet->device.count, 1);
  for (const double rate :
       {sheet->device.gemm_tflops, sheet->device.weight_gb_s, sheet->device.attention_tflops,
        sheet->device.memory_gb_s, sheet->device.adam_gb_s, sheet->device.launch_us,
        sheet->host.copy_gb_s, sheet->host.adam_gb_s, sheet->host.checksum_gb_s,
        sheet->disk.read_gb_s}) {
    EXPECT_GT(rate, 0) << sheet->to_toml();
  }
  const auto gpu = usable_gpu().gpu;
  EXPECT_GE(sheet->device.peak_tflops, this_machine_sheet({*gpu}).device.peak_tflops);
  // Weights and values for attention and updates went to it once, and what was copied each way
  // twice: once to warm up.
  const fake_cuda::Counters seen = fake_cuda::counters();
  EXPECT_GE(seen.copied_bytes, kBytes + 2 * 2 * kBytes);
  EXPECT_GE(seen.copied_bytes - seen.unpinned_bytes, 2 * 2 * kBytes) << "from pinned memory";
}

// What one GPU takes for one kind of task, as many times as long as it was measured to.
MachineSheet slowed(MachineSheet sheet, const std::string& gpu, TaskKind kind, double times) {
  MachineSheet::Profile& measured = sheet.profile;
  const MachineSheet::Profile before = measured;
  measured.devices.clear();
  measured.costs.clear();
  for (const std::string& name : before.devices) {
    MeasuredCosts costs = measured_costs(before, before.model, name).value();
    std::optional<Cost>& cost = costs[static_cast<size_t>(kind)];
    if (name == gpu) cost = Cost{.fixed_s = times * cost->fixed_s, .unit_s = times * cost->unit_s};
    add_device(name, costs, measured);
  }
  return sheet;
}

// Each GPU of a run has costs of its own, and a plan of the run goes by them.
TEST_F(CudaBench, ARunsGpusAreMeasured) {
  fake_cuda::start({.gpus = 2, .memory_bytes = 2 * kGiB, .memories = {2 * kGiB, kGiB}});
  auto sheet = measure();
  ASSERT_TRUE(sheet.ok()) << sheet.status().message();
  TinyRun run;
  RunConfig& config = run.config();
  config.train.devices = {"cuda*2"};
  config.data.sequence_len = config.train.micro_batch_tokens = 32;
  config.train.tokens_per_step = 8 * 32;
  config.train.chunks = 2;
  take_gpus(config, *sheet);
  EXPECT_EQ(sheet->device.count, 2);
  EXPECT_EQ(sheet->device_bytes(), kGiB);
  auto found = profile_run(config, *sheet, dir_.path(), 2);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->profile.devices, (std::vector<std::string>{"cuda:0", "cuda:1"}));
  EXPECT_EQ(found->devices.size(), 2u);
  for (const RunProfile::Device& device : found->devices) {
    EXPECT_GT(device.attention_s, 0) << device.name;
    EXPECT_EQ(device.attention_slowness, 0) << device.name;
  }
  sheet->profile = found->profile;
  ASSERT_TRUE(sheet->check().ok()) << sheet->check().message();
  for (const char* gpu : {"cuda:0", "cuda:1"}) {
    const auto costs = measured_costs(sheet->profile, sheet->profile.model, gpu);
    ASSERT_TRUE(costs) << gpu;
    for (const TaskKind kind : {TaskKind::kAttention, TaskKind::kAttentionBackward,
                                TaskKind::kExpert, TaskKind::kExpertBackward}) {
      EXPECT_TRUE((*costs)[static_cast<size_t>(kind)]) << gpu << ", " << task_row(kind).name;
    }
  }
  const ModelSizes model = read_model_sizes(config.model.path).take();
  const auto step_s = [&](const MachineSheet& of) {
    auto forecast = forecast_run(model, config, of, kFinePlan);
    CHECK(forecast.ok() && forecast->step, "%s", forecast.status().message().c_str());
    return forecast->step->step_s();
  };
  const double before_s = step_s(*sheet);
  EXPECT_GT(step_s(slowed(*sheet, "cuda:1", TaskKind::kAttention, 1000)), 2 * before_s);
}

// A GPU that a run takes by itself has no name to be measured by.
TEST_F(CudaBench, AGpuThatIsNotListedHasNoProfile) {
  fake_cuda::start({.memory_bytes = 2 * kGiB});
  TinyRun run;
  run.config().train.devices = {"auto"};
  auto found = profile_run(run.config(), MachineSheet(), dir_.path(), 1);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Exit::kUsage) << found.status().message();
}

TEST_F(CudaBench, AGpuWithoutRoomIsRefused) {
  fake_cuda::start({.memory_bytes = 64 * kMiB});
  auto sheet = measure();
  ASSERT_FALSE(sheet.ok());
  EXPECT_EQ(sheet.status().code(), Exit::kDeviceMemory) << sheet.status().message();
}

}  // namespace
}  // namespace pagoda
