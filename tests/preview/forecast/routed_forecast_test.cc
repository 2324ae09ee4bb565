// Homes and all-to-alls of recorded routing, on traces small enough to count by hand.
#include "preview/routed_forecast.h"

#include <gtest/gtest.h>

#include "cli/sheet_file.h"
#include "preview/row_speeds.h"
#include "preview/run_forecast.h"
#include "tests/preview/published_configs.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

constexpr double kRate = 1e9;  // bytes a second of a link

// One layer, rows of 32 bf16, a microbatch of 16 tokens on each device.
struct Recorded {
  Recorded(int64_t devices, int64_t experts) : run(DType::kBF16, model_config(experts).c_str()) {
    RunConfig& config = run.config();
    config.data.sequence_len = config.train.micro_batch_tokens = 16;
    config.train.tokens_per_step = devices * 16;
    config.train.shards = devices;
    config.train.devices = {strf("cpu*%lld", (long long)devices)};
    config.parallel.place = PlaceKind::kHome;
    trace.shape = {experts, 2, devices, {1}};
  }
  static std::string model_config(int64_t experts) {
    return tiny_with(strf(R"({"num_experts": %lld, "num_hidden_layers": 1, "mlp_only_layers": []})",
                          (long long)experts)
                         .c_str());
  }
  // tokens: [microbatch][expert]
  void add(int64_t step, const LayerRouting& tokens) {
    RoutedStep& added = trace.steps.emplace_back();
    added.step = step;
    for (const std::vector<int64_t>& of_microbatch : tokens) {
      added.routing.push_back({of_microbatch});
    }
  }
  // Experts' weights wait in the host.
  void use_least_memory() {
    model = read_model_sizes(run.config().model.path).take();
    const PlannedRun planned = planned_run(model, run.config(), sheet).take();
    run.config().memory.device = MemorySize::of_bytes(least_memory(planned).device_bytes);
  }
  Result<RoutedForecast> forecast() {
    model = read_model_sizes(run.config().model.path).take();
    PlannedRun planned = planned_run(model, run.config(), sheet).take();
    return forecast_routed(model, {{std::move(planned), &sheet}}, {Cost(), kRate}, trace);
  }

  // The ranks of so many processes on such machines, each with these devices.
  std::vector<PlannedRank> ranks_of(const char* devices, size_t count = 2) {
    return ranks_on(std::vector<MachineSheet>(count, sheet), devices);
  }
  // The ranks of a process on each machine.
  std::vector<PlannedRank> ranks_on(std::vector<MachineSheet> machines, const char* devices) {
    model = read_model_sizes(run.config().model.path).take();
    RunConfig config = run.config();
    config.train.devices = {devices};
    cluster.network.gb_s = 1;
    cluster.nodes = std::move(machines);
    config.total_devices = trace.shape.microbatches;  // a device for each
    const std::vector<RunConfig> configs(cluster.nodes.size(), config);
    std::vector<PlannedRank> ranks;
    std::vector<PlannedRun> runs = planned_ranks(model, configs, cluster).take();
    for (size_t r = 0; r < runs.size(); ++r) {
      ranks.push_back({std::move(runs[r]), &cluster.nodes[r]});
    }
    return ranks;
  }

  TinyRun run;
  RoutingTrace trace;
  MachineSheet sheet = machine("cpu-2-cores");
  ClusterSheet cluster;
  ModelSizes model;
};

// Experts 0 and 2 are at home on device 0, with 12 and 4 rows, and those of device 1 have none: it
// has twice the mean. A swap of 2 for 1 or 3 leaves 12 and 4, half above the mean, and no homes do
// better.
TEST(RoutedForecast, HomesAreThoseCountedByHand) {
  Recorded recorded(2, 4);
  recorded.add(3, {{6, 0, 2, 0}, {6, 0, 2, 0}});
  auto routed = recorded.forecast();
  ASSERT_TRUE(routed.ok()) << routed.status().message();
  EXPECT_EQ(routed->recorded_steps, 1);
  EXPECT_EQ(routed->learnt_steps, 1);
  EXPECT_EQ(routed->tried_steps, std::vector<int64_t>{3});
  EXPECT_FALSE(routed->seats_by_step);
  ASSERT_EQ(routed->homes.size(), 4u);
  const double imbalance[] = {2, 1.5, 1.5, 1.5};
  // A swap moves two. The longest go 12 to device 0 and 4 to device 1, where 1 and 3 are already.
  const int64_t moved[] = {0, 2, 2, 1};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(routed->homes[i].imbalance, imbalance[i]) << i;
    EXPECT_EQ(routed->homes[i].moved_experts, moved[i]) << i;
    EXPECT_EQ(routed->homes[i].move_s, 0) << i;  // one page file has them all
    EXPECT_GT(routed->homes[i].step_s, 0) << i;
  }
  EXPECT_LT(routed->homes[1].step_s, routed->homes[0].step_s);
  EXPECT_EQ(routed->pays_after(routed->homes[1]), 0);
  EXPECT_EQ(routed->pays_after(routed->homes[0]), -1);
  // 8 rows go from device 1 to device 0 and back: of 64 bytes each way forward; of two rows and a
  // weight, and of a row and a weight's gradient, backward.
  const double bytes = 8 * (64 + 64 + (128 + 4) + (64 + 4));
  EXPECT_DOUBLE_EQ(routed->exchange.in_order_s, bytes / kRate);
  EXPECT_DOUBLE_EQ(routed->exchange.shortest_first_s, bytes / kRate);
  EXPECT_DOUBLE_EQ(routed->exchange.rounds_s, bytes / kRate);
}

// Device 1 takes three times as long for a row, so that it has one of four experts. Its 14 rows are
// 42 of the time that device 0 takes for one, beside 18 there. Experts 3 and 0 for each other make
// that 12 and 28, where equal devices would have nothing to exchange; the mean is of 32 rows over
// four thirds of device 0's speed, 24.
TEST(RoutedForecast, HomesFollowFromTheSpeedOfDevices) {
  Recorded recorded(2, 4);
  recorded.run.config().train.devices = {"cpu/4", "cpu/12"};
  recorded.add(1, {{2, 2, 5, 7}, {2, 2, 5, 7}});
  auto routed = recorded.forecast();
  ASSERT_TRUE(routed.ok()) << routed.status().message();
  EXPECT_NEAR(routed->homes[0].imbalance, 42.0 / 24, 1e-12);
  for (const size_t swaps : {1, 2}) {
    EXPECT_EQ(routed->homes[swaps].moved_experts, 2) << swaps;
    EXPECT_NEAR(routed->homes[swaps].imbalance, 28.0 / 24, 1e-12) << swaps;
  }
}

// GPUs of different machines have homes alike, and experts 1 and 3 with 20 rows are where a row
// takes three times as long: 60 beside 12, where the mean is of 32 rows over four thirds, 24. Both
// are exchanged for others, which leaves 20 rows and three times 12. By equal speeds one exchange
// would do, after which either device has 16.
TEST(RoutedForecast, HomesFollowFromTheRatesOfMachines) {
  for (const ShareKind shares : {ShareKind::kSpeed, ShareKind::kMeasured}) {
    Recorded recorded(2, 4);
    recorded.run.config().parallel.shares = shares;
    recorded.add(1, {{3, 5, 3, 5}, {3, 5, 3, 5}});
    MachineSheet slow = machine("gpu-a40");
    slow.device.gemm_tflops /= 3;
    slow.device.weight_gb_s /= 3;
    slow.device.memory_gb_s /= 3;
    slow.device.launch_us *= 3;
    const std::vector<PlannedRank> ranks = recorded.ranks_on({machine("gpu-a40"), slow}, "auto");
    auto routed =
        forecast_routed(recorded.model, ranks, {{0, 1 / kRate, 0}, kRate}, recorded.trace);
    ASSERT_TRUE(routed.ok()) << routed.status().message();
    EXPECT_NEAR(routed->homes[0].imbalance, 60.0 / 24, 1e-12);
    for (const size_t swaps : {1, 2}) {
      EXPECT_EQ(routed->homes[swaps].moved_experts, 4) << swaps;
      EXPECT_NEAR(routed->homes[swaps].imbalance, 36.0 / 24, 1e-12) << swaps;
    }
  }
}

// Where experts get seats by step, the devices of the only rank share its rows: no home matters.
// Where all stays on the devices experts are at home, whatever was asked for.
TEST(RoutedForecast, SeatsByStepLeaveNoSwapWithinARank) {
  Recorded recorded(2, 4);
  recorded.run.config().parallel.place = PlaceKind::kStep;
  recorded.add(1, {{6, 0, 2, 0}, {6, 0, 2, 0}});
  for (const bool seats : {false, true}) {
    if (seats) recorded.use_least_memory();
    auto routed = recorded.forecast();
    ASSERT_TRUE(routed.ok()) << routed.status().message();
    EXPECT_EQ(routed->seats_by_step, seats);
    EXPECT_EQ(routed->homes[0].imbalance, seats ? 1.5 : 2) << "12 and 4 rows, or 16 and none";
    for (const size_t swaps : {1, 2}) {
      EXPECT_EQ(routed->homes[swaps].moved_experts, seats ? 0 : 2) << swaps;
    }
  }
}

// Where weights travel, each device computes the 8 rows that it has: no home is loaded, and no row
// leaves.
TEST(RoutedForecast, RowsOfGuestsStay) {
  Recorded recorded(2, 4);
  recorded.run.config().train.expert_shards = 2;
  recorded.run.config().parallel.sharing = Sharing::kData;
  recorded.use_least_memory();
  recorded.add(1, {{6, 0, 2, 0}, {6, 0, 2, 0}});
  auto routed = recorded.forecast();
  ASSERT_TRUE(routed.ok()) << routed.status().message();
  for (const RoutedHomes& homes : routed->homes) {
    EXPECT_EQ(homes.imbalance, 1) << homes.name;
    EXPECT_EQ(homes.moved_experts, 0) << homes.name;
  }
  EXPECT_EQ(routed->exchange.in_order_s, 0);
  EXPECT_EQ(routed->exchange.shortest_first_s, 0);
  EXPECT_EQ(routed->exchange.rounds_s, 0);
}

// Homes follow from the first half of the steps alone. There expert 0 is hot, and in the others,
// which are tried, expert 1 is: device 1 has three quarters of the rows of these before, and all of
// them when the homes of expert 0's neighbour have moved beside it.
TEST(RoutedForecast, HomesFollowFromStepsThatAreNotTried) {
  Recorded recorded(2, 4);
  for (const int64_t step : {1, 2}) recorded.add(step, {{6, 0, 2, 0}, {6, 0, 2, 0}});
  for (const int64_t step : {3, 4}) recorded.add(step, {{0, 6, 2, 0}, {0, 6, 2, 0}});
  auto routed = recorded.forecast();
  ASSERT_TRUE(routed.ok()) << routed.status().message();
  EXPECT_EQ(routed->learnt_steps, 2);
  EXPECT_EQ(routed->tried_steps, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(routed->homes[0].imbalance, 1.5);  // 4 and 12 rows
  EXPECT_EQ(routed->homes[3].imbalance, 2);    // 1, 2 and 3 on device 1
}

// Each of three devices has two rows for each other one. In order both senders that can begin with
// device 0 share it: three transmissions' time, where rounds take two.
TEST(RoutedForecast, ExchangesAreThoseCountedByHand) {
  Recorded recorded(3, 3);
  recorded.add(1, {{2, 2, 2}, {2, 2, 2}, {2, 2, 2}});
  auto routed = recorded.forecast();
  ASSERT_TRUE(routed.ok()) << routed.status().message();
  const double one = 2 * (64 + 64 + (128 + 4) + (64 + 4)) / kRate;
  EXPECT_DOUBLE_EQ(routed->exchange.in_order_s, 3 * one);
  EXPECT_DOUBLE_EQ(routed->exchange.shortest_first_s, 3 * one);
  EXPECT_DOUBLE_EQ(routed->exchange.rounds_s, 2 * one);
  for (const RoutedHomes& homes : routed->homes) {
    EXPECT_EQ(homes.imbalance, 1) << homes.name;
    EXPECT_EQ(homes.moved_experts, 0) << homes.name;
  }
}

// Device 1 sends 8 rows to device 0, of which 6 are for expert 0, in a block, and 2 for expert 2,
// in the next one. Rows that stay until their backward do not come again: none, a block's, or
// both's.
TEST(RoutedForecast, RowsThatStayAreSentOnce) {
  for (const auto& [kept, again] : {std::pair("0", 8), std::pair("256", 2), std::pair("512", 0)}) {
    SCOPED_TRACE(kept);
    Recorded recorded(2, 4);
    recorded.run.config().parallel.kept_rows = kept;
    recorded.add(1, {{6, 0, 2, 0}, {6, 0, 2, 0}});
    auto routed = recorded.forecast();
    ASSERT_TRUE(routed.ok()) << routed.status().message();
    const double bytes = 8 * (64 + 64 + (64 + 4) + (64 + 4)) + again * 64;
    EXPECT_DOUBLE_EQ(routed->exchange.in_order_s, bytes / kRate);
    EXPECT_DOUBLE_EQ(routed->exchange.rounds_s, bytes / kRate);
  }
}

// On two ranks of two devices each, which have 8 rows for each expert, one of which is at home with
// each. A GPU has a network card of its own, by which 16 rows leave and as many come; but in order
// both of a rank begin with the same one of the other's, and share it. CPU devices of a rank share
// a card, so that 32 rows leave it. What stays within a rank takes no time.
TEST(RoutedForecast, ExchangesBetweenRanksGoByCards) {
  for (const bool gpus : {false, true}) {
    SCOPED_TRACE(gpus);
    Recorded recorded(4, 4);
    if (gpus) recorded.sheet = machine("gpu-2xa40");
    const std::vector<int64_t> even(4, 8);
    recorded.add(1, {even, even, even, even});
    const std::vector<PlannedRank> ranks = recorded.ranks_of(gpus ? "auto" : "cpu*2");
    ASSERT_EQ(ranks.front().run.shape.devices, 4);
    auto routed =
        forecast_routed(recorded.model, ranks, {{0, 1 / kRate, 0}, kRate}, recorded.trace);
    ASSERT_TRUE(routed.ok()) << routed.status().message();
    const double row_s = (64 + 64 + (128 + 4) + (64 + 4)) / kRate;
    EXPECT_NEAR(routed->exchange.in_order_s, 32 * row_s, 1e-9 * row_s);
    EXPECT_NEAR(routed->exchange.rounds_s, (gpus ? 16 : 32) * row_s, 1e-9 * row_s);
  }
}

// Between ranks an expert's weights and states travel: one each way at once.
TEST(RoutedForecast, MovesBetweenRanksTakeTheirTime) {
  Recorded recorded(2, 4);
  recorded.add(1, {{6, 0, 2, 0}, {6, 0, 2, 0}});
  const std::vector<PlannedRank> ranks = recorded.ranks_of("cpu");
  const RecordShape expert = ranks[0].run.shape.records[ranks[0].run.shape.expert(0, 0)];
  EXPECT_EQ(expert.num_elements, 3 * 32 * 24);
  auto routed = forecast_routed(recorded.model, ranks, {{0, 1 / kRate, 0}, kRate}, recorded.trace);
  ASSERT_TRUE(routed.ok()) << routed.status().message();
  const double bytes = static_cast<double>(expert.num_elements * 2 + expert.state_bytes);
  EXPECT_EQ(routed->homes[1].moved_experts, 2);
  EXPECT_DOUBLE_EQ(routed->homes[1].move_s, bytes / kRate);
  EXPECT_DOUBLE_EQ(routed->homes[3].move_s, bytes / kRate);  // one leaves rank 0
  const double gain_s = routed->homes[0].step_s - routed->homes[1].step_s;
  ASSERT_GT(gain_s, 0);
  const auto steps = static_cast<double>(routed->pays_after(routed->homes[1]));
  EXPECT_GE(steps * gain_s, bytes / kRate);
  EXPECT_LT((steps - 1) * gain_s, bytes / kRate);
}

// Experts 0 and 1 have all rows. Dealt out behind them, the others both go to the first device that
// has none yet, so that rank 3 has no expert left.
TEST(RoutedForecast, ARankMayBeLeftWithoutExperts) {
  Recorded recorded(4, 4);
  const std::vector<int64_t> two = {16, 16, 0, 0};
  recorded.add(1, {two, two, two, two});
  const std::vector<PlannedRank> ranks = recorded.ranks_of("cpu", 4);
  auto routed = forecast_routed(recorded.model, ranks, {{0, 1 / kRate, 0}, kRate}, recorded.trace);
  ASSERT_TRUE(routed.ok()) << routed.status().message();
  EXPECT_EQ(routed->homes[3].moved_experts, 1);
  EXPECT_EQ(routed->homes[3].imbalance, 2);  // two of four devices have all rows
  EXPECT_GT(routed->homes[3].move_s, 0);
}

// Each expert has 512 rows of 4096 tokens that choose 8 of 64 experts. Matrices of 2048 x 1024 are
// in three products forward and in eight backward, where two are repeated. Forward three are read
// in bf16, backward six, and three sums in fp32 are written. A row of 2048 or 1024 bf16 is read or
// written six times and eight times in both.
TEST(RowSpeeds, AreThoseOfSheets) {
  const auto seconds = [](double gemm_tflops, double gb_s) {
    constexpr double kRows = 512, kMatrix = 2048 * 1024, kLaunchS = 5e-6;
    const double bytes = kRows * 2 * (6 * 2048 + 8 * 1024) + (9 * 2 + 3 * 4) * kMatrix;
    return kRows * 11 * 2 * kMatrix / (gemm_tflops * 1e12) + bytes / (gb_s * 1e9) + 2 * kLaunchS;
  };
  const double a40_s = seconds(112, 620), v100_s = seconds(90, 800);
  const ClusterSheet cluster = read_cluster_sheet(configs("clusters/a40-v100.toml")).take();
  const ModelSizes model = published("olmoe-1b-7b");
  std::vector<PlannedRun> runs = planned_ranks(model, rows_of(16, 4096, cluster), cluster).take();
  std::vector<PlannedRank> ranks;
  for (size_t r = 0; r < runs.size(); ++r) {
    ranks.push_back({std::move(runs[r]), &cluster.nodes[r]});
  }
  const std::vector<double> speeds = row_speeds(model.shape, ranks);
  ASSERT_EQ(speeds.size(), 4u);
  EXPECT_LT(a40_s, v100_s);
  for (size_t d = 0; d < 4; ++d) EXPECT_NEAR(speeds[d], d < 2 ? 1 : a40_s / v100_s, 1e-9) << d;
}

TEST(RoutedForecast, RefusesTracesOfOtherRuns) {
  const auto refused = [](Recorded& recorded, Exit code, const std::string& what) {
    const Status status = recorded.forecast().status();
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  Recorded recorded(2, 4);
  refused(recorded, Exit::kBadData, "no whole step");
  recorded.add(1, {{6, 0, 2, 0}, {6, 0, 2, 0}});
  recorded.trace.shape.num_experts = 8;
  refused(recorded, Exit::kUsage, "another model");
  recorded.trace.shape = {4, 2, 2, {1, 1}};
  refused(recorded, Exit::kUsage, "another model");
  recorded.trace.shape = {4, 2, 3, {1}};
  refused(recorded, Exit::kUsage, "3 microbatches and the run's 2");
  recorded.trace.shape = {4, 2, 2, {1}};
  recorded.trace.steps[0].routing[1][0] = {33, 1, 0, 0};
  refused(recorded, Exit::kUsage, "more than the run's 16 tokens");
  recorded.trace.steps[0].routing[1][0] = {31, 1, 0, 0};
  EXPECT_TRUE(recorded.forecast().ok());
  recorded.run.config().train.devices = {"cpu"};
  refused(recorded, Exit::kUsage, "one device");
}

}  // namespace
}  // namespace pagoda
