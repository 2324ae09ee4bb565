// Runs of several GPUs and ranks, planned from a published config.json: what devices do, what links
// and networks carry, and what a step takes, counted by hand.
#include <gtest/gtest.h>

#include "preview/run_forecast.h"
#include "preview/this_machine.h"
#include "tests/preview/published_configs.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

// A machine of several GPUs makes one run, of the same records as one GPU's: each attends to its
// part of the microbatches, and is the home of its part of the experts.
TEST(RanksForecast, OfSeveralGpusIsOneRun) {
  const ModelSizes model = published("olmoe-1b-7b");
  const RunConfig config = workstation_run();
  MachineSheet box = machine("gpu-4x48gb");
  const PlannedRun four = planned_run(model, config, box).take();
  EXPECT_EQ(four.shape.devices, 4);
  EXPECT_EQ(four.budget.host_bytes, box.auto_host_bytes());
  const RunForecast plan = forecast_memory(model, config, box).take();
  EXPECT_EQ(plan.devices, std::vector<RunForecast::DeviceWork>(4, {4, 16, 16}));
  EXPECT_DOUBLE_EQ(plan.peak_flops_per_s, 4 * 362e12);
  box.device.count = 1;
  const PlannedRun one = planned_run(model, config, box).take();
  EXPECT_EQ(one.shape.devices, 1);
  EXPECT_EQ(one.shape.sums, four.shape.sums);
  ASSERT_EQ(one.shape.records.size(), four.shape.records.size());
  for (size_t r = 0; r < one.shape.records.size(); ++r) {
    EXPECT_EQ(one.shape.records[r].num_elements, four.shape.records[r].num_elements);
    EXPECT_EQ(one.shape.records[r].state_bytes, four.shape.records[r].state_bytes);
  }
  EXPECT_EQ(forecast_memory(model, config, box)->store_bytes, plan.store_bytes);
}

// Three devices divide neither 64 experts nor 6 microbatches, whose two shards two of them have.
TEST(RanksForecast, DevicesNeedDivideNothing) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.train.tokens_per_step = 4096 * 6;
  MachineSheet box = machine("gpu-4x48gb");
  box.device.count = 3;
  const RunForecast plan = forecast_run(model, config, box, kSearchPlan).take();
  const std::vector<RunForecast::DeviceWork> works = {{3, 22, 16}, {3, 21, 16}, {0, 21, 16}};
  EXPECT_EQ(plan.devices, works);
  EXPECT_TRUE(plan.step.has_value());
  // An expert fewer than devices leaves one idle; it is planned all the same.
  box.device.count = 64;
  const RunForecast idle = forecast_memory(published("mixtral-8x7b"), config, box).take();
  EXPECT_EQ(idle.devices.back(), (RunForecast::DeviceWork{0, 0, 32}));
  box.device.count = 65;
  EXPECT_EQ(forecast_memory(model, config, box).status().code(), Exit::kUsage);
  box.device.count = 4;
  config.train.devices = cpus(2);
  EXPECT_EQ(forecast_memory(model, config, box).status().code(), Exit::kUsage);
}

// Where links are no limit and all stays on the devices, four GPUs take a quarter of one's time,
// and somewhat more: waves end together, and sums of gradients are added.
TEST(RanksForecast, FourGpusAreAlmostFourTimesAsFast) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.memory.device = MemorySize::of_bytes(200 * kGiB);
  MachineSheet box = machine("gpu-4x48gb");
  box.link.gb_s = 900;
  box.link.latency_us = 2;
  const double four = forecast_run(model, config, box, kSearchPlan)->tokens_per_s();
  box.device.count = 1;
  const double one = forecast_run(model, config, box, kSearchPlan)->tokens_per_s();
  EXPECT_LE(four, 4 * one);
  EXPECT_GE(four, 3 * one);
}

// Two ranks with room for all that the backward reads. If either has none, it computes its layers
// again, and the step takes longer.
TEST(RanksForecast, EachRankKeepsTheLayersThatItHasRoomFor) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.memory.device = MemorySize::of_bytes(200 * kGiB);
  const std::vector<RunConfig> both(2, config);
  const ClusterSheet cluster = equal_nodes(2, machine("gpu-24gb"));
  const RanksForecast roomy = forecast_ranks(model, both, cluster, kSearchPlan).take();
  EXPECT_EQ(roomy.step.saved_layers, model.config.num_layers);
  for (const size_t rank : {0, 1}) {
    std::vector<RunConfig> configs = both;
    configs[rank].memory.device =
        MemorySize::of_bytes(roomy.step.ranks[rank].device_bytes + kGiB / 16);
    const RanksForecast tight = forecast_ranks(model, configs, cluster, kSearchPlan).take();
    EXPECT_GT(tight.step.step_s(), 1.01 * roomy.step.step_s()) << rank;
  }
}

// Two ranks of which the first attends: half of the rows of 16 layers, 8 of each token, go to the
// other's experts and back. A row is 2048 numbers of two bytes; the backward sends input and
// gradient with a routing weight of four bytes, and gets a gradient and that of the weight.
TEST(RanksForecast, RanksSendTheRowsOfEachOthersExperts) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.parallel.attention_devices = 1;
  const std::vector<RunConfig> both(2, config);
  ClusterSheet cluster = equal_nodes(2, machine("gpu-24gb"));
  const RanksForecast run = forecast_ranks(model, both, cluster, kSearchPlan).take();
  constexpr int64_t kRows = int64_t{16} * 65536 * 8 / 2, kRow = 2048 * 2;
  EXPECT_EQ(run.step.ranks[0].sent_bytes, kRows * (kRow + 2 * kRow + 4));
  EXPECT_EQ(run.step.ranks[1].sent_bytes, kRows * (kRow + kRow + 4));
  EXPECT_GT(run.step.step_s(), static_cast<double>(run.step.ranks[0].sent_bytes) / 10e9);
  EXPECT_GT(run.step.busy_s(Resource::kNetwork), 0);
  // Each has the room of its own machine, and half of the experts.
  EXPECT_EQ(run.budgets[1].host_bytes, cluster.nodes[1].auto_host_bytes());
  // An element of an expert, which has 3 x 2048 x 1024, is stored in 14 bytes, beside headers.
  constexpr double kExperts = 16.0 * 32 * 3 * 2048 * 1024 * 14;
  EXPECT_NEAR(static_cast<double>(run.store_bytes[1]) / kExperts, 1, 0.01);
  EXPECT_GT(run.store_bytes[0], run.store_bytes[1]) << "it has all else";
  // A network ten times as slow is what limits it.
  cluster.network.gb_s = 1;
  const RanksForecast slow = forecast_ranks(model, both, cluster, kSearchPlan).take();
  EXPECT_GT(slow.step.step_s(), run.step.step_s());
  EXPECT_EQ(slow.step.bottleneck(), Resource::kNetwork);
  // So is one card that is as slow, whichever it is, as its node's sheet says.
  cluster.network.gb_s = 10;
  for (const size_t rank : {0, 1}) {
    cluster.nodes[rank].network.gb_s = 1;
    cluster.nodes[1 - rank].network.gb_s = 0;
    const RanksForecast one = forecast_ranks(model, both, cluster, kSearchPlan).take();
    EXPECT_GT(one.step.step_s(), static_cast<double>(run.step.ranks[0].sent_bytes) / 1e9);
  }
}

// Two ranks that attend to half of the tokens each, so that an expert has 4096 rows there: weights
// travel in place of them, as they would for more than 2457. In place of rows, which have five
// times 2048 numbers of two bytes, a routing weight and its gradient, each rank sends the weights
// of 16 layers' 32 experts, and again for the backward of those layers that do not keep them, and
// the fp32 sums of the others' gradients. A third of the GPU has room to keep most.
TEST(RanksForecast, RanksSendWhatHasFewerBytes) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.train.expert_shards = 8;
  ASSERT_EQ(config.sums().shards, 8);
  const ClusterSheet cluster = equal_nodes(2, machine("gpu-24gb"));
  const auto sent = [&](Sharing sharing) {
    config.parallel.sharing = sharing;
    const std::vector<RunConfig> both(2, config);
    const RanksForecast run = forecast_ranks(model, both, cluster, kSearchPlan).take();
    return std::vector<int64_t>{run.step.ranks[0].sent_bytes, run.step.ranks[1].sent_bytes};
  };
  constexpr int64_t kRows = int64_t{16} * 65536 * 8 / 4, kRow = 5 * 2048 * 2 + 8;
  constexpr int64_t kExperts = int64_t{16} * 32 * 3 * 2048 * 1024;
  const std::vector<int64_t> of_rows = sent(Sharing::kRows), of_data = sent(Sharing::kData);
  const std::vector<RunConfig> both(2, config);
  const int64_t kept = planned_ranks(model, both, cluster).take()[0].shape.guest_layers;
  EXPECT_GT(kept, 8);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(of_data[rank],
              of_rows[rank] - kRows * kRow + kExperts * (2 + 4) + kExperts / 16 * (16 - kept) * 2);
  }
  EXPECT_EQ(sent(Sharing::kAuto), of_data);
  // With half of the tokens rows have fewer bytes.
  config.train.tokens_per_step /= 2;
  EXPECT_EQ(sent(Sharing::kAuto), sent(Sharing::kRows));
}

TEST(RanksForecast, RanksHaveTheirOwnSettingsAndMachines) {
  const ModelSizes model = published("olmoe-1b-7b");
  std::vector<RunConfig> both(2, workstation_run());
  ClusterSheet cluster = equal_nodes(2, machine("gpu-24gb"));
  both[1].memory.host = MemorySize::of_bytes(20 * kGiB);
  const std::vector<PlannedRun> runs = planned_ranks(model, both, cluster).take();
  EXPECT_EQ(runs[0].budget.host_bytes, cluster.nodes[0].auto_host_bytes());
  EXPECT_EQ(runs[1].budget.host_bytes, 20 * kGiB);
  EXPECT_EQ(runs[1].shape.rank, 1);
  EXPECT_EQ(runs[1].shape.ranks(), 2);
  EXPECT_EQ(runs[0].shape.group_blocks, runs[1].shape.group_blocks);
  // The least of one does not depend on what another has room for.
  const int64_t least = least_memory(runs[0]).device_bytes;
  EXPECT_GT(runs[0].group_bytes[0], 0);
  both[1].memory.device = MemorySize::of_bytes(least_memory(runs[1]).device_bytes);
  const PlannedRun first = std::move(planned_ranks(model, both, cluster).take().front());
  EXPECT_EQ(first.shape.group_blocks, 1);
  EXPECT_EQ(first.group_bytes, std::vector<int64_t>{0});
  EXPECT_EQ(least_memory(first).device_bytes, least);
  both[1].memory.device = both[0].memory.device;
  both[1].memory.host = MemorySize::of_bytes(kMiB);
  const Status small = forecast_ranks(model, both, cluster, kSearchPlan).status();
  EXPECT_EQ(small.code(), Exit::kHostMemory);
  EXPECT_NE(small.message().find("host of rank 1"), std::string::npos) << small.message();
  cluster.nodes[1] = machine("cpu-2-cores");
  EXPECT_EQ(planned_ranks(model, both, cluster).status().code(), Exit::kUsage);
}

TEST(RanksForecast, RanksMayListUnequalNumbersOfDevices) {
  ClusterSheet cluster;
  cluster.nodes = {this_machine_sheet(), this_machine_sheet(), machine("gpu-2xa40")};
  std::vector<RunConfig> configs(3);
  configs[1].train.devices = {"cpu/4*2", "cpu"};
  EXPECT_EQ(devices_of_nodes(configs, cluster), 1 + 3 + 2);
  EXPECT_EQ(devices_of_nodes(configs[1], cluster), 3 + 3 + 2);
}

// Time is at least that of the products at their rate, bytes over each link's rate, updates at
// theirs; and the model's operations per second are below the peak.
TEST(RanksForecast, IsNotFasterThanItsParts) {
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

// Links carry three quarters of the rows, whose tokens another device attends to, and sums of dense
// gradients, counted by hand: bf16 rows go there and back in the forward; in the backward rows and
// gradients go there, gradients come back. Each record's sum is added from four devices to one.
TEST(RanksForecast, LinksCarryWhatIsCountedByHand) {
  const ModelSizes model = published("olmoe-1b-7b");
  const RunConfig config = workstation_run();
  MachineSheet sheet = machine("gpu-4x48gb");
  sheet.link.latency_us = 0;
  const auto links_s = [&] {
    const RunForecast plan = forecast_run(model, config, sheet, kSearchPlan).take();
    return plan.step->busy_s(Resource::kLinks);
  };
  constexpr double kRows = 65536.0 * 8 * 16, kHidden = 2048;  // tokens, experts of each, layers
  const double rows = kRows * 3 / 4 * 10 * kHidden;
  double dense = 0;
  for (const RecordShape& record : planned_run(model, config, sheet)->shape.records) {
    if (record.expert < 0) dense += static_cast<double>(record.num_elements);
  }
  const double counted_s = (rows + 3 * 4 * dense) / 4 / (sheet.link.gb_s * 1e9);
  const double slow_s = links_s();
  EXPECT_NEAR(slow_s, counted_s, 0.01 * counted_s);
  sheet.link.gb_s *= 2;
  EXPECT_NEAR(links_s(), slow_s / 2, 1e-6 * slow_s);
  sheet.device.count = 1;
  EXPECT_EQ(links_s(), 0);
}

}  // namespace
}  // namespace pagoda
