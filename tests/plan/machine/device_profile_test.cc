// Measured costs of devices stand in the place of those by the sheet's rates, for the devices and
// sizes they were measured with and for nothing else.
#include "plan/machine/device_profile.h"

#include <gtest/gtest.h>

#include "plan/machine/task_costs.h"
#include "tests/testing/plan/two_ranks.h"

namespace pagoda {
namespace {

ModelShape model() {
  ModelShape m;
  m.vocab_size = 2000;
  m.hidden_size = 256;
  m.is_moe = {1, 1};
  m.attention = {.heads = 4, .kv_heads = 2, .head_dim = 64, .value_head_dim = 64};
  m.num_experts = 8;
  m.experts_per_token = 2;
  m.expert_ffn = 512;
  return m;
}

RunShape run() {
  RunShape run;
  run.num_layers = 2;
  run.is_moe = {1, 1};
  run.num_experts = 8;
  run.hidden_size = 256;
  run.experts_per_token = 2;
  run.microbatches = 4;
  run.microbatch_tokens = 128;
  run.row_block = 256;
  run.devices = 2;
  run.records = {{100, 0, -1, 0, 1000}, {300, 0, 0, 0, 3000}};
  return run;
}

MachineSheet sheet() {
  MachineSheet sheet;
  MachineSheet::Device& d = sheet.device;
  d.peak_tflops = d.gemm_tflops = d.attention_tflops = 1;
  d.memory_gb_s = d.weight_gb_s = 10;
  sheet.host.cores = 2;
  sheet.host.memory = MemorySize::of_bytes(int64_t{1} << 30);
  sheet.host.copy_gb_s = sheet.host.checksum_gb_s = sheet.host.adam_gb_s = 1;
  sheet.disk.read_gb_s = sheet.disk.write_gb_s = 1;
  return sheet;
}

CostSettings settings() {
  CostSettings work;
  work.sequence_len = 128;
  work.devices = {{1, {8, 24}, "cpu/8:24"}, {1, {8, 8}, "cpu/8"}};
  return work;
}

constexpr auto kAttention = static_cast<size_t>(TaskKind::kAttention);
constexpr auto kExpert = static_cast<size_t>(TaskKind::kExpert);
constexpr auto kExpertBackward = static_cast<size_t>(TaskKind::kExpertBackward);
constexpr auto kRouteBackward = static_cast<size_t>(TaskKind::kRouteBackward);

MachineSheet profiled() {
  MachineSheet sheet = pagoda::sheet();
  sheet.profile.model = profile_key(model(), 128, 128);
  MeasuredCosts costs;
  costs[kAttention] = Cost{3e-3, 5e-6};
  costs[kRouteBackward] = Cost{0, 2e-6};
  costs[kExpertBackward] = Cost{.fixed_s = 1e-3, .unit_s = 4e-6, .start_s = 2e-3};
  add_device("cpu/8:24", costs, sheet.profile);
  return sheet;
}

TEST(DeviceProfile, CostsStandInPlaceOfDerivedOnes) {
  const TaskCosts derived = task_costs(sheet(), model(), run(), settings()).device_tasks[0];
  const MachineProfile p = task_costs(profiled(), model(), run(), settings());
  EXPECT_DOUBLE_EQ(p.device_tasks[0][kAttention].fixed_s, 3e-3);
  EXPECT_DOUBLE_EQ(p.device_tasks[0][kAttention].unit_s, 5e-6);
  EXPECT_DOUBLE_EQ(p.device_tasks[0][kRouteBackward].seconds(1000), 2e-3);
  EXPECT_DOUBLE_EQ(p.device_tasks[0][kExpertBackward].seconds(1000), 7e-3);
  EXPECT_DOUBLE_EQ(p.device_tasks[0][kExpertBackward].joined_s(1000), 5e-3);
  // The cores that it keeps busy are the throttle's to say.
  EXPECT_DOUBLE_EQ(p.device_tasks[0][kAttention].cores, derived[kAttention].cores);
  // What was not measured, and where it was not.
  EXPECT_DOUBLE_EQ(p.device_tasks[0][kExpert].unit_s, derived[kExpert].unit_s);
  const TaskCosts other = task_costs(sheet(), model(), run(), settings()).device_tasks[1];
  EXPECT_DOUBLE_EQ(p.device_tasks[1][kAttention].unit_s, other[kAttention].unit_s);
}

TEST(DeviceProfile, HoldsForItsSizesAlone) {
  const double derived =
      task_costs(sheet(), model(), run(), settings()).device_tasks[0][kAttention].unit_s;
  const auto unit_s = [](const ModelShape& m, const RunShape& r) {
    return task_costs(profiled(), m, r, settings()).device_tasks[0][kAttention].unit_s;
  };
  RunShape longer = run();
  longer.microbatch_tokens = 256;
  EXPECT_DOUBLE_EQ(unit_s(model(), longer), derived);
  // More layers and experts are the same tasks.
  ModelShape deeper = model();
  deeper.is_moe = {1, 1, 1};
  deeper.num_experts = 16;
  RunShape deep = run();
  deep.num_layers = 3;
  deep.is_moe = {1, 1, 1};
  deep.num_experts = 16;
  EXPECT_DOUBLE_EQ(unit_s(deeper, deep), 5e-6);
  ModelShape wider = model();
  wider.expert_ffn = 1024;
  EXPECT_NE(unit_s(wider, run()), 5e-6);
}

TEST(DeviceProfile, RefusesWhatIsNoCost) {
  MachineSheet sheet = profiled();
  EXPECT_TRUE(sheet.check().ok()) << sheet.check().message();
  const std::vector<std::string> good = sheet.profile.costs;
  for (const char* bad :
       {"cpu/8:24", "cpu/8:24, attention", "cpu/8:24, attention: 1", "cpu/8:24, attention: 1 2 3 4",
        "cpu/8:24, attention: 1 2 -3", "cpu/8:24, attention: -1 2", "cpu/8:24, attention: 1 nan",
        "cpu/8:24, lunch: 1 2", "cpu/8:24, attention: 1 inf", "", "cpu/8:24, attention: 1 2x"}) {
    sheet.profile.costs = good;
    sheet.profile.costs.push_back(bad);
    EXPECT_EQ(sheet.check().code(), Exit::kUsage) << bad;
  }
  sheet.profile.costs = {"cpu/9, attention: 1 2"};
  EXPECT_NE(sheet.check().message().find("does not name"), std::string::npos);
  sheet.profile = {};
  sheet.profile.most_kept = -1;
  EXPECT_EQ(sheet.check().code(), Exit::kUsage);
}

// Two devices have half of an expert each, which are 240 elements of its 480. Ten rows, and what
// takes as long for any number of them, are half of what a whole expert takes.
TEST(DeviceProfile, APartOfAnExpertTakesItsShareOfTheTime) {
  RunShape shape = two_ranks({1}, Sharing::kModel);
  shape.expert_parts = 2;
  MachineProfile profile;
  for (const TaskKind kind :
       {TaskKind::kExpert, TaskKind::kExpertBackward, TaskKind::kGradient, TaskKind::kAttention}) {
    profile.of(kind) = {.fixed_s = 10, .unit_s = 2};
  }
  Task task;
  task.layer = task.expert = 0;
  task.record = shape.expert(0, 0);
  task.rows = 10;
  const auto seconds_of = [&](TaskKind kind) {
    task.kind = kind;
    return profile.joined_s(task, shape);
  };
  EXPECT_DOUBLE_EQ(seconds_of(TaskKind::kExpert), 0.5 * (10 + 2 * 10));
  EXPECT_DOUBLE_EQ(seconds_of(TaskKind::kExpertBackward), 0.5 * (10 + 2 * 10));
  EXPECT_DOUBLE_EQ(seconds_of(TaskKind::kGradient), 0.5 * 10 + 2 * 240);
  EXPECT_DOUBLE_EQ(seconds_of(TaskKind::kAttention), 10 + 2 * 100);
  shape.expert_parts = 1;  // two whole ones
  EXPECT_DOUBLE_EQ(seconds_of(TaskKind::kExpert), 10 + 2 * 10);
}

}  // namespace
}  // namespace pagoda
