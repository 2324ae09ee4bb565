// A run planned from its config.json alone: the same shape, memory and bytes as `train` plans with
// its tensors; several GPUs as one run; changes that are said to fit do fit.
#include "preview/run_forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cli/sheet_file.h"
#include "plan/machine/model_cost.h"
#include "plan/step/expert_seats.h"
#include "plan/step/step_schedule.h"
#include "preview/plan_changes.h"
#include "preview/this_machine.h"
#include "preview/zebra_choice.h"
#include "report/traffic_report.h"
#include "tests/preview/published_configs.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "train/saved_layers.h"

namespace pagoda {
namespace {

// A run of the quick start's size on a workstation.
RunConfig workstation_run() {
  RunConfig config;
  config.train.tokens_per_step = 65536;
  config.train.micro_batch_tokens = 4096;
  config.train.save_steps = 0;
  return config;
}

ClusterSheet nodes(int count, const MachineSheet& node) {
  ClusterSheet cluster;
  cluster.network = {10, 20};
  cluster.nodes.assign(static_cast<size_t>(count), node);
  return cluster;
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
  EXPECT_EQ(a.sharing, b.sharing);
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
    const std::pair<const char*, int> runs[] = {{"cpu", 0},  {"cpu*2", 0},          {"cpu", 5},
                                                {"cpu*2", 16}, {"cpu*4", 0}, {"cpu/8,cpu/4:24", 0}};
    for (const auto& [devices, group_blocks] : runs) {
      SCOPED_TRACE(testing::Message() << devices << ", groups of " << group_blocks);
      TinyRun run;
      run.config().plan.group_blocks = group_blocks;
      run.config().optim.state = state;
      run.config().train.devices = {devices};
      run.use_minimum_budgets();
      const ModelSizes model = read_model_sizes(run.config().model.path).take();
      MachineSheet sheet = machine("cpu-2-cores");
      const PlannedRun planned = planned_run(model, run.config(), sheet).take();
      SessionOptions options = session_options(run.config());
      const MemoryPlan memory = Session::plan(model.config, options).take();
      options.size.group_blocks = memory.group_blocks;
      const RunShape shape = make_run_shape(model_shape(model.config), options);
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

// Each device has as much as a step needs there: the second one, which does not attend, less. What
// is planned is what `train` divides, and a byte less anywhere is too little for both.
TEST(RunForecast, DevicesMayHaveUnequalBudgets) {
  TinyRun run;
  RunConfig& config = run.config();
  config.train.devices = {"cpu*2"};
  config.parallel.attention_devices = 1;
  config.plan.group_blocks = 1;
  run.use_minimum_budgets();
  const ModelSizes model = read_model_sizes(config.model.path).take();
  const MachineSheet sheet = machine("cpu-2-cores");
  const std::vector<int64_t> least =
      Session::plan(model.config, session_options(config))->min_on_device;
  ASSERT_LT(least[1], least[0] - 1);
  const auto set = [&](int64_t first, int64_t second) {
    config.memory.device = MemorySizes({MemorySize::of_bytes(first), MemorySize::of_bytes(second)});
  };
  for (const int64_t more : {0, 20000}) {
    set(least[0], least[1] + more);
    const SessionOptions options = session_options(config);
    const MemoryPlan memory = Session::plan(model.config, options).take();
    const RunShape shape = make_run_shape(model_shape(model.config), options);
    const RunForecast plan = forecast_run(model, config, sheet, kFinePlan).take();
    ASSERT_TRUE(plan.fits.ok()) << plan.fits.message();
    EXPECT_EQ(plan.tightest, 0);
    EXPECT_EQ(plan.device_bytes, least[0]);
    EXPECT_EQ(plan.step->traffic, predict_traffic(shape, PageTable(shape), memory).step);
    const RanksForecast ranks =
        forecast_ranks(model, {&config, 1}, nodes(1, sheet), kFinePlan).take();
    EXPECT_EQ(ranks.step.traffic, plan.step->traffic);
    EXPECT_EQ(ranks.budgets[0].device_bytes, least[0]);
  }
  for (const int device : {0, 1}) {
    set(least[0] - (device == 0 ? 1 : 0), least[1] - (device == 1 ? 1 : 0));
    EXPECT_EQ(Session::plan(model.config, session_options(config)).status().code(),
              Exit::kDeviceMemory);
    const RunForecast plan = forecast_run(model, config, sheet, kFinePlan).take();
    EXPECT_EQ(plan.fits.code(), Exit::kDoesNotFit);
    EXPECT_EQ(plan.tightest, device);
    EXPECT_NE(plan.fits.message().find(strf("device %d has ", device)), std::string::npos)
        << plan.fits.message();
    EXPECT_EQ(forecast_ranks(model, {&config, 1}, nodes(1, sheet), kFinePlan).status().code(),
              Exit::kDeviceMemory);
  }
}

// Weights of the same experts travel to the same devices as in the run, which computes there the
// rows that the plan says: some have as many bytes as weights, which have those of 18.7 rows.
TEST(RunForecast, SharesExpertsAsTheRunDoes) {
  TinyRun run(DType::kBF16, tiny_with(R"({"num_experts": 4, "moe_intermediate_size": 8})").c_str());
  RunConfig& config = run.config();
  config.train.micro_batch_tokens = 32;
  config.train.expert_shards = 4;
  config.parallel.place = PlaceKind::kHome;
  config.train.devices = {"cpu*3"};
  run.use_minimum_budgets();
  const ModelSizes model = read_model_sizes(config.model.path).take();
  const PlannedRun planned = planned_run(model, config, machine("cpu-2-cores")).take();
  EXPECT_EQ(planned.shape.sharing, Sharing::kAuto);
  SimStorage storage(3);
  const auto trainer = Trainer::start(config, false, &storage).take();
  const Session& session = trainer->session();
  expect_equal(planned.shape, session.shape());
  std::vector<int64_t> rows(session.executor().expert_rows().size(), 0);
  int64_t guests = 0, parts = 0;  // of experts on devices that are not their homes
  for (int step = 0; step < 3; ++step) {
    const Routing routing = trainer->step().take().routing;
    for (int64_t l = 0; l < planned.shape.num_layers; ++l) {
      if (!planned.shape.is_moe[static_cast<size_t>(l)]) continue;
      const LayerRouting of_layer = layer_routing(routing, l);
      const LayerSeats seats =
          layer_seats(planned.shape, l, all_microbatches(planned.shape), of_layer);
      for (int64_t b = 0; b < planned.shape.microbatches; ++b) {
        for (int64_t e = 0; e < planned.shape.num_experts; ++e) {
          const int device = seats.device_of(e, b, 4);
          const int64_t count = of_layer[static_cast<size_t>(b)][static_cast<size_t>(e)];
          rows[static_cast<size_t>(l * 3 + device)] += count;
          const bool away = count > 0 && planned.shape.attending(l, b) != seats.seat(e);
          parts += away;
          guests += away && device != seats.seat(e);
        }
      }
    }
  }
  EXPECT_EQ(session.executor().expert_rows(), rows);
  EXPECT_GT(guests, 0);
  EXPECT_LT(guests, parts);
}

// Layers that keep what their backward reads, and that a step is shorter for it.
// What zebra leaves open: a plan takes the numbers that a run on this machine writes down, and what
// the run file has stays.
TEST(RunForecast, ChoosesZebraAsTrainDoes) {
  TinyRun run;
  RunConfig& config = run.config();
  config.data.sequence_len = config.train.micro_batch_tokens = 16;
  config.train.tokens_per_step = 12 * 16;
  config.train.chunks = 4;
  config.train.devices = {"cpu/8:8", "cpu/10:30", "cpu/10:30"};
  config.parallel.layout = LayoutKind::kZebra;
  ASSERT_TRUE(config.validate().ok()) << config.validate().message();
  const MachineSheet sheet = this_machine_sheet();
  const ModelSizes model = read_model_sizes(config.model.path).take();
  const PlannedRun planned = planned_run(model, config, sheet).take();
  RankGroup alone;
  ASSERT_TRUE(resolve_zebra(config, alone).ok());
  EXPECT_FALSE(config.auto_lags() || config.auto_offloaded());
  EXPECT_GT(config.parallel.attention_devices, 0);
  ASSERT_TRUE(config.validate().ok()) << config.validate().message();
  const PlannedRun again = planned_run(model, config, sheet).take();
  expect_equal(planned.shape, again.shape);
  EXPECT_EQ(planned.shape.lags, again.shape.lags);
  EXPECT_EQ(planned.shape.shard_device, again.shape.shard_device);
  config.parallel.lags = {"2", "1", "0"};
  config.parallel.offloaded = {"5"};
  config.parallel.attention_devices = 0;
  ASSERT_TRUE(resolve_zebra(config, alone).ok());
  EXPECT_EQ(config.lags(), (Lags{2, 1, 0}));
  EXPECT_EQ(config.offloaded(), std::vector<int64_t>{5});
}

TEST(RunForecast, KeepsAsManyLayersAsTrainDoes) {
  for (const int64_t devices : {1, 2}) {
    TinyRun run;
    run.config().train.devices = cpus(devices);
    // Whatever the budget.
    run.config().plan.group_blocks = 1;
    run.config().plan.waves_in_flight = kLeastWaves;
    const ModelSizes model = read_model_sizes(run.config().model.path).take();
    const ModelConfig& trained = model.config;
    SessionOptions options = session_options(run.config());
    const int64_t whole = Session::plan(trained, options).take().whole_device_bytes;
    const int64_t all = most_kept_bytes(trained, options), layers = trained.num_layers;
    double backward_s = std::numeric_limits<double>::infinity();
    for (int64_t n = 0; n <= layers; ++n) {
      SCOPED_TRACE(testing::Message() << n << " layers, " << devices << " devices");
      // Any further device has room for all.
      std::vector<int64_t> bytes(static_cast<size_t>(devices), whole + 2 * all);
      bytes[0] = whole + all * (2 * n + 1) / (2 * layers);
      std::vector<MemorySize> budgets;
      for (const int64_t of_device : bytes) budgets.push_back(MemorySize::of_bytes(of_device));
      options.device_bytes = bytes;
      run.config().memory.device = MemorySizes(budgets);
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

// Parts of experts that are taken together have the work that they have one by one: their rows by
// their columns. Three parts, also where one device has all of them, or one has two.
TEST(RunForecast, PartsOfExpertsMayBeTakenTogether) {
  TinyRun run(DType::kBF16,
              tiny_with(R"({"num_experts": 16, "moe_intermediate_size": 64})").c_str());
  RunConfig& config = run.config();
  config.parallel.sharing = Sharing::kModel;
  config.parallel.hidden_shares = {"2", "1", "1"};
  config.train.threads = 1;
  ModelSizes model = read_model_sizes(config.model.path).take();
  ASSERT_TRUE(model.cut_experts(config.hidden_shares()).ok());
  for (const int devices : {1, 2, 3}) {
    config.train.devices = {strf("cpu/%d*%d", 8, devices)};
    MachineSheet sheet = machine("cpu-2-cores");
    sheet.device.launch_us = 0;
    sheet.device.weight_gb_s = 1e6;  // only rows count
    const RunForecast fine = forecast_run(model, config, sheet, kFinePlan).take();
    const RunForecast coarse =
        forecast_run(model, config, sheet, {.expert_records = 8, .microbatches = 64, .blocks = 64})
            .take();
    ASSERT_GT(coarse.step->coarseness.experts, 1);
    const auto computes_s = [](const RunForecast& of) {
      return of.step->busy_s(Resource::kCompute);
    };
    std::printf("%d devices: %.4g s one by one, %.4g s together\n", devices, computes_s(fine),
                computes_s(coarse));
    EXPECT_NEAR(computes_s(coarse) / computes_s(fine), 1, 0.01);
  }
}

// A device alone is slowed as one of several is: all but updates take eight times as long.
TEST(RunForecast, OneDeviceMayBeSlowed) {
  TinyRun run;
  run.config().train.threads = 1;
  run.config().plan.optimizer_at_end = true;  // nothing beside that shares the cores
  const ModelSizes model = read_model_sizes(run.config().model.path).take();
  const auto computes_s = [&](const std::string& device) {
    run.config().train.devices = {device};
    const RunForecast plan =
        forecast_run(model, run.config(), machine("cpu-2-cores"), kFinePlan).take();
    return plan.step->busy_s(Resource::kCompute);
  };
  const double once = computes_s("cpu"), twice = computes_s("cpu/2"), often = computes_s("cpu/8");
  EXPECT_GT(twice, 1.5 * once);
  EXPECT_NEAR((often - once) / (twice - once), 7, 1e-6);
}

// A machine of several GPUs makes one run, of the same records as one GPU's: each attends to its
// part of the microbatches, and is the home of its part of the experts.
TEST(RunForecast, OfSeveralGpusIsOneRun) {
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
TEST(RunForecast, DevicesNeedDivideNothing) {
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
TEST(RunForecast, FourGpusAreAlmostFourTimesAsFast) {
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
TEST(RunForecast, EachRankKeepsTheLayersThatItHasRoomFor) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.memory.device = MemorySize::of_bytes(200 * kGiB);
  const std::vector<RunConfig> both(2, config);
  const ClusterSheet cluster = nodes(2, machine("gpu-24gb"));
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
TEST(RunForecast, RanksSendTheRowsOfEachOthersExperts) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.parallel.attention_devices = 1;
  const std::vector<RunConfig> both(2, config);
  ClusterSheet cluster = nodes(2, machine("gpu-24gb"));
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
TEST(RunForecast, RanksSendWhatHasFewerBytes) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.train.expert_shards = 8;
  ASSERT_EQ(config.sums().shards, 8);
  const ClusterSheet cluster = nodes(2, machine("gpu-24gb"));
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

TEST(RunForecast, RanksHaveTheirOwnSettingsAndMachines) {
  const ModelSizes model = published("olmoe-1b-7b");
  std::vector<RunConfig> both(2, workstation_run());
  ClusterSheet cluster = nodes(2, machine("gpu-24gb"));
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

TEST(RunForecast, RanksMayListUnequalNumbersOfDevices) {
  ClusterSheet cluster;
  cluster.nodes = {this_machine_sheet(), this_machine_sheet(), machine("gpu-2xa40")};
  std::vector<RunConfig> configs(3);
  configs[1].train.devices = {"cpu/4*2", "cpu"};
  EXPECT_EQ(devices_of_nodes(configs, cluster), 1 + 3 + 2);
  EXPECT_EQ(devices_of_nodes(configs[1], cluster), 3 + 3 + 2);
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

// Links carry three quarters of the rows, whose tokens another device attends to, and sums of dense
// gradients, counted by hand: bf16 rows go there and back in the forward; in the backward rows and
// gradients go there, gradients come back. Each record's sum is added from four devices to one.
TEST(RunForecast, LinksCarryWhatIsCountedByHand) {
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

// The assignments that are tried change the run as they say, and the best is the one named.
TEST(PlanChanges, NameTheBestAssignment) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.parallel.attention_devices = 1;
  const MachineSheet sheet = machine("gpu-4x48gb");
  const PlanAdvice advice = advise(model, config, sheet, kSearchPlan);
  EXPECT_EQ(advice.assignments, 3);  // two attend, four attend, or experts stay at home
  EXPECT_EQ(advice.best_assignment, "parallel.attention_devices = 4");
  config.parallel.attention_devices = 4;
  EXPECT_EQ(advise(model, config, sheet, kSearchPlan).best_assignment, "");
  EXPECT_EQ(advise(model, workstation_run(), machine("gpu-24gb"), kSearchPlan).assignments, 0);
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
