// A run planned from its config.json alone: the same shape, memory and bytes as `train` plans with
// its tensors.
#include "preview/run_forecast.h"

#include <gtest/gtest.h>

#include <limits>

#include "plan/step/expert_seats.h"
#include "preview/this_machine.h"
#include "preview/zebra_choice.h"
#include "report/traffic_report.h"
#include "tests/preview/published_configs.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "train/saved_layers.h"

namespace pagoda {
namespace {

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

// A step of 1073741823 microbatches of a sequence each is refused before memory is taken for each
// of them, by a forecast and by a session.
TEST(RunForecast, NoStepHasMorePagesThanThereMayBe) {
  TinyRun run;
  RunConfig& config = run.config();
  config.data.sequence_len = config.train.micro_batch_tokens = 2;
  config.train.tokens_per_step = 2147483646;
  const ModelSizes model = read_model_sizes(config.model.path).take();
  for (const char* devices : {"cpu", "cpu*2"}) {
    config.train.devices = {devices};
    const MachineSheet sheet = machine("cpu-2-cores");
    const Status refused[] = {planned_run(model, config, sheet).status(),
                              Session::plan(model.config, session_options(config)).status()};
    for (const Status& status : refused) {
      EXPECT_EQ(status.code(), Exit::kHostMemory);
      EXPECT_TRUE(status.message().starts_with("1073741823 microbatches of a step take more "))
          << status.message();
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
        forecast_ranks(model, {&config, 1}, equal_nodes(1, sheet), kFinePlan).take();
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
    EXPECT_EQ(forecast_ranks(model, {&config, 1}, equal_nodes(1, sheet), kFinePlan).status().code(),
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

// Layers that keep what their backward reads, and that a step is shorter for it.
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

}  // namespace
}  // namespace pagoda
