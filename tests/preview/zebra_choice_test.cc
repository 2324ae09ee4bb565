// What zebra chooses where the slower device cannot hold all experts: the forecast of a run pages
// them, the clock that chooses knows only how long they take to come.
#include "preview/zebra_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/machine/device_profile.h"
#include "plan/step/pages.h"
#include "plan/zebra/zebra_search.h"
#include "preview/kept_experts.h"
#include "preview/run_forecast.h"
#include "preview/sheet_budgets.h"
#include "preview/this_machine.h"
#include "tests/preview/twelve_experts.h"

namespace pagoda {
namespace {

const char* const kFast = "cpu/4";
const char* const kSlow = "cpu/4:5";

ModelSizes model_sizes() { return parse_model_sizes(kTwelveExperts, "test").take(); }

// The faster device has 5 MiB, room for its part of weights but not of states.
RunConfig run_of_two(const std::vector<std::string>& device_bytes) {
  RunConfig config;
  config.train.devices = {kFast, kSlow};
  config.train.tokens_per_step = 512;
  config.train.micro_batch_tokens = 64;
  config.train.chunks = 4;
  config.train.save_steps = 0;
  config.data.sequence_len = 64;
  config.memory.device = MemorySizes::parse(device_bytes).take();
  config.memory.host = MemorySize::parse("1GiB").take();
  config.parallel.layout = LayoutKind::kZebra;
  config.parallel.attention_devices = 1;
  return config;
}

// `row_us`: of experts, of the fast device and the slow one. With 25 us attention and experts take
// as long on their devices; a page of an expert takes as long to come as several of them compute.
MachineSheet sheet_of(const RunConfig& config, double fast_row_us = 25, double slow_row_us = 25) {
  MachineSheet sheet = this_machine_sheet();
  sheet.host.cores = 64;  // nothing waits for a core
  sheet.host.copy_gb_s = 0.002;
  sheet.profile.model =
      profile_key(model_sizes().shape, config.train.micro_batch_tokens, config.data.sequence_len);
  for (const auto& [name, row_us] : {std::pair(kFast, fast_row_us), {kSlow, slow_row_us}}) {
    MeasuredCosts costs;
    for (std::optional<Cost>& cost : costs) cost = Cost{0, 1e-9, 1, 0};
    const auto set = [&](TaskKind kind, double us) {
      costs[static_cast<size_t>(kind)]->unit_s = us * 1e-6;
    };
    set(TaskKind::kAttention, 50);
    set(TaskKind::kAttentionBackward, 100);
    set(TaskKind::kExpert, row_us);
    set(TaskKind::kExpertBackward, 2 * row_us);
    add_device(name, costs, sheet.profile);
  }
  return sheet;
}

std::optional<double> step_s(RunConfig config, const MachineSheet& sheet, int64_t kept) {
  config.parallel.offloaded = {std::to_string(kept)};
  const RunForecast forecast = forecast_run(model_sizes(), config, sheet, kFinePlan).take();
  return forecast.step ? std::optional(forecast.step->step_s()) : std::nullopt;
}

int64_t chosen(const RunConfig& config, const MachineSheet& sheet) {
  const PlannedRun run = planned_run(model_sizes(), config, sheet).take();
  RunConfig written = config;
  write_zebra(run.shape, written);
  return written.offloaded().front();
}

TEST(ZebraChoice, KeepsMoreExpertsWhereTheOthersWouldComeAndGo) {
  const RunConfig roomy = run_of_two({"1GiB", "1GiB"});
  const MachineSheet sheet = sheet_of(roomy);
  const int64_t with_room = chosen(roomy, sheet);
  for (const char* slow_bytes : {"2MiB", "2400KiB", "3MiB"}) {
    const RunConfig narrow = run_of_two({"5MiB", slow_bytes});
    double best_s = std::numeric_limits<double>::infinity();
    for (int64_t kept = 0; kept < 12; ++kept) {
      if (const auto seconds = step_s(narrow, sheet, kept)) best_s = std::min(best_s, *seconds);
    }
    const auto chosen_s = step_s(narrow, sheet, chosen(narrow, sheet));
    ASSERT_TRUE(chosen_s) << slow_bytes;
    EXPECT_LE(*chosen_s, 1.05 * best_s) << slow_bytes;
    EXPECT_GT(*step_s(narrow, sheet, with_room), 1.2 * *chosen_s) << slow_bytes;
  }
}

// With 2 MiB the faster device has no room for most experts' gradients, though keeping them would
// be fastest: it computes them in no time.
TEST(ZebraChoice, WhatDoesNotFitIsNotChosen) {
  const RunConfig narrow = run_of_two({"2MiB"}), roomy = run_of_two({"1GiB"});
  MachineSheet sheet = sheet_of(narrow, 0.01, 5000);
  sheet.host.copy_gb_s = 1000;
  ASSERT_FALSE(step_s(narrow, sheet, 11));
  EXPECT_GE(chosen(roomy, sheet), 11);
  EXPECT_TRUE(step_s(narrow, sheet, chosen(narrow, sheet)));
}

// All of a chunk's rows of an expert, at most 256, fit a row block.
TEST(ZebraChoice, RowsStayWhereAllHasRoom) {
  const auto written = [](const RunConfig& config) {
    RunConfig copy = config;
    write_zebra(planned_run(model_sizes(), config, sheet_of(config)).take().shape, copy);
    return copy;
  };
  const RunConfig roomy = written(run_of_two({"1GiB", "1GiB"}));
  const int64_t given = roomy.offloaded().front();
  EXPECT_EQ(roomy.kept_rows(), 256 * std::max(given, 12 - given));
  EXPECT_EQ(written(run_of_two({"1GiB", "2MiB"})).parallel.kept_rows, "0");
  RunConfig told = run_of_two({"1GiB", "1GiB"});
  told.parallel.kept_rows = "300";
  EXPECT_EQ(written(told).parallel.kept_rows, "300");
}

// Rows of 128 bytes stay on the slower device: 256 of each of four chunks in three layers.
TEST(ZebraChoice, RowsThatAreToldToStayTakeRoomInEveryLayer) {
  const auto chosen_with = [](const char* kept_rows, int64_t slow_bytes) {
    RunConfig config = run_of_two({"1GiB", std::to_string(slow_bytes)});
    config.parallel.kept_rows = kept_rows;
    RunConfig written = config;
    write_zebra(planned_run(model_sizes(), config, sheet_of(config)).take().shape, written);
    return written.parallel.offloaded;
  };
  constexpr int64_t kKept = 3 * 4 * 256 * 128;
  for (int64_t bytes = 2'000'000; bytes < 3'000'000; bytes += 50'000) {
    EXPECT_EQ(chosen_with("256", bytes + kKept), chosen_with("0", bytes)) << bytes;
  }
}

// An expert has 3 * 64 * 96 bf16 weights, 36,864 bytes, and twice as many of fp32 sums. The slower
// device has twelve in each of three layers: 442,368 bytes a layer. A byte takes 1 us to come.
TEST(ZebraChoice, PagesOfExpertsTakeTheTimeCountedByHand) {
  RunSetup setup = run_setup(run_of_two({"1GiB"}));
  setup.offloaded = {0};
  const RunShape shape = make_run_shape(model_sizes().shape, setup);
  ASSERT_EQ(PageTable::expert_sum_pages(shape), 1);
  MachineProfile profile;
  profile.upload.unit_s = 1e-6;
  const double of_layer = 442'368, sums = 2 * of_layer, ample = 1e12;
  const auto experts = [&](double held) {
    const WeightRoom slow = {sums + held, ample};
    return *run_times(shape, profile, {{ample, ample}, slow}).of(0, 0).slower.experts;
  };
  // Half of two layers' weights stay, so that each chunk reads half of a layer's again.
  EXPECT_NEAR(experts(of_layer).forward_s, 0.5 * 0.442368, 1e-9);
  EXPECT_NEAR(experts(of_layer).backward_s, 0.5 * 0.442368, 1e-9);
  // Two of three layers stay: four chunks read what was updated once, and a third once more.
  EXPECT_NEAR(experts(2 * of_layer).forward_s, 0.442368 / 4, 1e-9);
  EXPECT_NEAR(experts(2 * of_layer).backward_s, 0.442368 / 3 / 4, 1e-9);
  EXPECT_EQ(experts(ample).forward_s, 0);
}

// An expert's row takes 200 times as long on the device that attends, which keeps none unless it is
// told to: 33 of 36 are 11 of each layer's 12.
TEST(ZebraChoice, CountsOfAProfileHoldForTheirRunAlone) {
  const RunConfig narrow = run_of_two({"64MiB"});
  MachineSheet sheet = sheet_of(narrow, 5000);
  sheet.profile.least_kept = 33;
  sheet.profile.most_kept = 36;
  EXPECT_EQ(chosen(narrow, sheet), 0) << "nobody said what they hold for";
  sheet.profile.kept_by =
      kept_experts_key(model_sizes().shape, run_setup(narrow), device_budget(narrow, sheet, 2));
  EXPECT_EQ(chosen(narrow, sheet), 11);
  EXPECT_EQ(chosen(run_of_two({"1GiB"}), sheet), 0);
  RunConfig longer = narrow;
  longer.train.tokens_per_step = 1024;
  EXPECT_EQ(chosen(longer, sheet), 0);
}

// A run that begins knows one machine, a plan one for each rank: they choose alike.
TEST(ZebraChoice, RanksOnLikeMachinesChooseAsOneMachineKnowsThem) {
  const RunConfig config = run_of_two({"3MiB"});
  MachineSheet sheet = sheet_of(config);
  sheet.network.gb_s = 1;
  RunSetup setup = run_setup(config);
  setup.devices[1].rank = 1;
  RunSetup planned = setup;
  choose_zebra(model_sizes().shape, {{&sheet}}, config, setup);
  choose_zebra(model_sizes().shape, {{&sheet, &sheet}, {0, 1e-9}}, config, planned);
  EXPECT_EQ(setup.offloaded, planned.offloaded);
  EXPECT_EQ(setup.lags, planned.lags);
  EXPECT_GT(setup.offloaded.front(), 0);
}

// Two copies of devices that are listed so, each with shards by the speed of those that attend.
RunConfig run_of_copies(const std::vector<std::string>& devices, int64_t shards) {
  RunConfig config = run_of_two({"1GiB"});
  config.train.devices = devices;
  config.train.chunks = 2;
  config.train.tokens_per_step = 2 * shards * config.train.micro_batch_tokens;
  config.train.shards = config.train.expert_shards = shards;
  config.parallel.attention_devices = 0;
  config.parallel.copies = 2;
  return config;
}

// Attention takes as long on all devices, and what else they do next to nothing.
MachineSheet sheet_of_attention(const RunConfig& config) {
  MachineSheet sheet = sheet_of(config);
  sheet.profile.devices = sheet.profile.costs = {};
  MeasuredCosts costs;
  for (std::optional<Cost>& cost : costs) cost = Cost{0, 1e-9, 1, 0};
  for (const TaskKind kind : {TaskKind::kAttention, TaskKind::kAttentionBackward}) {
    costs[static_cast<size_t>(kind)]->unit_s = 100e-6;
  }
  std::vector<std::string> names;
  for (const ListedDevice& device : config.devices()) names.push_back(device.text());
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) add_device(name, costs, sheet.profile);
  return sheet;
}

// Speeds are 3 to 1, so that of 8 shards one copy has 6 and the other 2: with fewer than 6 devices
// that attend one of them would have two shards. The number of each copy is that of the one which
// has more.
TEST(ZebraChoice, WritesTheDevicesOfTheCopyThatHasMore) {
  RunConfig config = run_of_copies({"cpu/2*8", "cpu/6*8"}, 8);
  const MachineSheet sheet = sheet_of_attention(config);
  const PlannedRun planned = planned_run(model_sizes(), config, sheet).take();
  EXPECT_EQ(planned.shape.shard_device, (std::vector<int>{0, 1, 2, 3, 4, 5, 8, 9}));
  write_zebra(planned.shape, config);
  EXPECT_EQ(config.parallel.attention_devices, 6);
  const PlannedRun again = planned_run(model_sizes(), config, sheet).take();
  EXPECT_EQ(again.shape.shard_device, planned.shape.shard_device);
}

// Speeds are 1 to 10, so that both shards go to the second copy. The first has no device that
// attends, and keeps no expert.
TEST(ZebraChoice, WritesTheExpertsThatTheCopyWithShardsKeeps) {
  RunConfig config = run_of_copies({"cpu/20*2", "cpu/2*2"}, 2);
  const Status valid = config.validate_for_planning();
  ASSERT_TRUE(valid.ok()) << valid.message();
  RunSetup setup = run_setup(config);
  setup.offloaded = {3};
  const RunShape shape = make_run_shape(model_sizes().shape, setup);
  ASSERT_EQ(shape.shard_device, (std::vector<int>{2, 2}));
  write_zebra(shape, config);
  EXPECT_EQ(config.parallel.offloaded, (std::vector<std::string>{"3"}));
  EXPECT_EQ(config.parallel.attention_devices, 1);
}

// Devices of all speeds: fewer attend than may, and if only so many may, copies have shards by
// other speeds.
TEST(ZebraChoice, WhatIsWrittenIsWhatWasPlanned) {
  std::mt19937 random(1);
  int differ = 0;
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<std::string> devices;
    for (int d = 0; d < 10; ++d) devices.push_back("cpu/" + std::to_string(2 + random() % 12));
    RunConfig config = run_of_copies(devices, 8);
    const MachineSheet sheet = sheet_of_attention(config);
    const PlannedRun planned = planned_run(model_sizes(), config, sheet).take();
    write_zebra(planned.shape, config);
    const PlannedRun again = planned_run(model_sizes(), config, sheet).take();
    differ += again.shape.shard_device != planned.shape.shard_device;
  }
  EXPECT_EQ(differ, 0);
}

// A chunk's rows, 32 KiB, take 16 ms to the other device, and attention and experts 6.4 ms each. By
// a fast network the device that attends sends all of them.
TEST(ZebraChoice, ANetworkThatNobodyMeasuredIsAsFastAsCopies) {
  const RunConfig config = run_of_two({"1GiB"});
  const auto kept_over = [&](double network_gb_s) {
    MachineSheet sheet = sheet_of(config);
    sheet.network.gb_s = network_gb_s;
    RunSetup setup = run_setup(config);
    setup.devices[1].rank = 1;
    choose_zebra(model_sizes().shape, {{&sheet}}, config, setup);
    return setup.offloaded.front();
  };
  EXPECT_EQ(kept_over(0), kept_over(0.002));
  EXPECT_GT(kept_over(0), kept_over(1000));
}

}  // namespace
}  // namespace pagoda
