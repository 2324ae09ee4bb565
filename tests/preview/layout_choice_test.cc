// "auto" takes the layout that must be faster by a profile, and stays open without one.
#include "preview/layout_choice.h"

#include <gtest/gtest.h>

#include "plan/machine/device_profile.h"
#include "plan/step/task.h"
#include "preview/this_machine.h"
#include "tests/preview/twelve_experts.h"

namespace pagoda {
namespace {

const char* const kFast = "cpu/4";
const char* const kSlow = "cpu/4:5";

ModelSizes model_sizes() { return parse_model_sizes(kTwelveExperts, "test").take(); }

// Both layouts of this run attend on both devices in shares by speed, or on one of them alone.
RunConfig run_of_two() {
  RunConfig config;
  config.train.devices = {kFast, kSlow};
  config.train.tokens_per_step = 512;
  config.train.micro_batch_tokens = 64;
  config.train.chunks = 2;
  config.train.save_steps = 0;
  config.data.sequence_len = 64;
  config.memory.device = MemorySizes::parse({"1GiB"}).take();
  config.memory.host = MemorySize::parse("1GiB").take();
  config.parallel.attention_devices = 1;
  config.parallel.offloaded = {"0"};
  return config;
}

struct Microseconds {
  double token = 0.1, row = 0.1;  // of attention and of experts
};

MeasuredCosts costs(const Microseconds& of) {
  MeasuredCosts costs;
  for (size_t kind = 0; kind < costs.size(); ++kind) costs[kind] = Cost{0, 1e-9, 1, 0};
  const auto set = [&](TaskKind kind, double us) {
    costs[static_cast<size_t>(kind)]->unit_s = us * 1e-6;
  };
  set(TaskKind::kAttention, of.token);
  set(TaskKind::kAttentionBackward, 2 * of.token);
  set(TaskKind::kExpert, of.row);
  set(TaskKind::kExpertBackward, 2 * of.row);
  return costs;
}

MachineSheet profiled(const RunConfig& config, const Microseconds& fast, const Microseconds& slow) {
  MachineSheet sheet = this_machine_sheet();
  sheet.host.cores = 64;  // nothing waits for a core
  sheet.profile.model =
      profile_key(model_sizes().shape, config.train.micro_batch_tokens, config.data.sequence_len);
  add_device(kFast, costs(fast), sheet.profile);
  add_device(kSlow, costs(slow), sheet.profile);
  return sheet;
}

// One device attends either way. With zebra the other one has all experts, and both work at once;
// without, both have experts and wait for attention.
TEST(LayoutChoice, ZebraWhereAttentionAndExpertsTakeAsLong) {
  RunConfig config = run_of_two();
  // A layer has 512 tokens on the fast device and 1,024 rows on the slow one.
  const MachineSheet sheet = profiled(config, {100, 1000}, {1000, 50});
  const LayoutChoice choice = choose_layout(model_sizes(), sheet, config).take();
  EXPECT_TRUE(choice.zebra());
  EXPECT_EQ(config.parallel.layout, LayoutKind::kZebra);
  // Attention alone, forward and backward of three layers, takes 3 * 3 * 512 * 100 us.
  EXPECT_GE(choice.zebra_s, 0.4608);
}

TEST(LayoutChoice, ExpertsWhereTheOtherDeviceWouldHaveNearlyAllWork) {
  RunConfig config = run_of_two();
  const MachineSheet sheet = profiled(config, {1, 100}, {1, 100});
  const LayoutChoice choice = choose_layout(model_sizes(), sheet, config).take();
  EXPECT_FALSE(choice.zebra());
  EXPECT_GT(choice.experts_s, 0);
  EXPECT_EQ(config.parallel.layout, LayoutKind::kExperts);
  // All rows on one device: 3 * 3 * 1,024 * 100 us.
  EXPECT_GE(choice.zebra_s, 0.9216);
}

TEST(LayoutChoice, ZebraWhereNothingElseFits) {
  EXPECT_TRUE((LayoutChoice{.zebra_s = 1, .experts_s = 0, .simulated = true}.zebra()));
  EXPECT_FALSE((LayoutChoice{.zebra_s = 0, .experts_s = 1, .simulated = true}.zebra()));
  EXPECT_FALSE(LayoutChoice{}.zebra());
}

void expect_open(RunConfig config, const MachineSheet& sheet) {
  const LayoutChoice choice = choose_layout(model_sizes(), sheet, config).take();
  EXPECT_FALSE(choice.simulated);
  EXPECT_EQ(config.parallel.layout, LayoutKind::kAuto);
}

TEST(LayoutChoice, StaysOpenWithoutAProfileOfTheRun) {
  const RunConfig config = run_of_two();
  const MachineSheet sheet = profiled(config, {100, 1000}, {1000, 50});
  expect_open(config, this_machine_sheet());
  RunConfig longer = config;
  longer.data.sequence_len = 32;
  expect_open(longer, sheet);
  RunConfig others = config;
  others.train.devices = {kFast, "cpu/4:6"};
  expect_open(others, sheet);
  RunConfig one_chunk = config;
  one_chunk.train.chunks = 1;
  expect_open(one_chunk, sheet);
}

// Other layouts read neither of these.
TEST(LayoutChoice, StaysOpenWhereZebrasStagesWouldNotDo) {
  const MachineSheet sheet = profiled(run_of_two(), {100, 1000}, {1000, 50});
  RunConfig config = run_of_two();
  config.train.devices = {kFast, kSlow, kFast, kSlow, kFast, kSlow};
  config.parallel.stages = 3;
  EXPECT_TRUE(as_zebra(model_sizes().shape, config));
  RunConfig two_counts = config;
  two_counts.parallel.stage_layers = {"1", "2"};
  ASSERT_TRUE(two_counts.validate_for_planning().ok());
  expect_open(two_counts, sheet);
  RunConfig more_stages = config;
  more_stages.train.devices.insert(more_stages.train.devices.end(), {kFast, kSlow});
  more_stages.parallel.stages = 4;  // of three layers
  expect_open(more_stages, sheet);
}

TEST(LayoutChoice, WhatTheRunFileNamesStays) {
  RunConfig config = run_of_two();
  config.parallel.layout = LayoutKind::kExperts;
  const MachineSheet sheet = profiled(config, {100, 1000}, {1000, 50});
  EXPECT_EQ(choose_layout(model_sizes(), sheet, config).take().zebra_s, 0);
  EXPECT_EQ(config.parallel.layout, LayoutKind::kExperts);
}

}  // namespace
}  // namespace pagoda
