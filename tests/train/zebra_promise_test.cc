// The root promise in zebra's order: devices that attend and devices with the experts work at
// different chunks of a step at a time, and the run ends with the SHA-256 of one device that takes
// all chunks layer by layer. Rows vary devices, stages and their orders, experts left where
// attention is, lags, sums, models and budgets; those with the smallest budgets must have paged,
// and all must have sent.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/train/layout_run.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

struct ZebraRow {
  const char* what;
  const char* devices = "cpu*2";
  int64_t attention = 1;
  std::vector<std::string> offloaded = {"0"};
  std::vector<std::string> lags = {"auto"};
  Budget budget = Budget::kMinimum;
  int64_t chunks = 4, shards = 3;  // of twelve microbatches
  const char* changes = "{}";      // of the model
  ClipKind clip = ClipKind::kGlobal;
  PlanOptions plan = {};
  bool resumed = false;
  int64_t expert_shards = 1;
  double correction_speed = 0;
  const char* kept_rows = "0";
  int64_t stages = 1;
  PipelineOrder order = PipelineOrder::kBreadthFirst;
  int64_t copies = 1;
};

constexpr PipelineOrder kGpipe = PipelineOrder::kGpipe;
constexpr PipelineOrder kAlternate = PipelineOrder::kOneForwardOneBackward;

constexpr const char* kShared = R"({"architectures": ["Qwen2MoeForCausalLM"],
  "model_type": "qwen2_moe", "shared_expert_intermediate_size": 20, "mlp_only_layers": []})";
constexpr const char* kTied = R"({"tie_word_embeddings": true})";
constexpr const char* kGlm = R"({"architectures": ["Glm4MoeForCausalLM"],
  "model_type": "glm4_moe", "n_routed_experts": 24, "num_hidden_layers": 3})";
constexpr const char* kDeepSeek = R"({"architectures": ["DeepseekV3ForCausalLM"],
  "model_type": "deepseek_v3", "n_routed_experts": 24, "n_group": 3, "topk_group": 2,
  "n_shared_experts": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4,
  "kv_lora_rank": 20, "q_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
  "v_head_dim": 6})";
constexpr const char* kLastDense = R"({"mlp_only_layers": [0, 2], "num_hidden_layers": 3})";
constexpr const char* kAllMoe = R"({"mlp_only_layers": [], "num_hidden_layers": 3})";
constexpr const char* kFourMoe = R"({"mlp_only_layers": [], "num_hidden_layers": 4})";
constexpr const char* kFourTied =
    R"({"mlp_only_layers": [1], "num_hidden_layers": 4, "tie_word_embeddings": true})";
constexpr const char* kFourShared = R"({"architectures": ["Qwen2MoeForCausalLM"],
  "model_type": "qwen2_moe", "shared_expert_intermediate_size": 20, "mlp_only_layers": [],
  "num_hidden_layers": 4})";

const ZebraRow kRows[] = {
    {.what = "one and one"},
    {.what = "one and one, ample", .budget = Budget::kAmple},
    {.what = "one and one, middle, some experts stay",
     .offloaded = {"5"},
     .budget = Budget::kMiddle},
    {.what = "all experts stay with attention", .offloaded = {"24"}},
    {.what = "a number for each layer", .offloaded = {"3", "0", "7"}, .changes = kAllMoe},
    {.what = "two and two", .devices = "cpu*4", .attention = 2},
    {.what = "two and two, some stay",
     .devices = "cpu*4",
     .attention = 2,
     .offloaded = {"4"},
     .plan = {.group_blocks = 8}},
    {.what = "one and three, ample", .devices = "cpu*4", .budget = Budget::kAmple},
    {.what = "three and one", .devices = "cpu*4", .attention = 3, .offloaded = {"6"}},
    {.what = "three and one, ample", .devices = "cpu*4", .attention = 3, .budget = Budget::kAmple},
    {.what = "no lags, middle", .lags = {"0", "0", "0"}, .budget = Budget::kMiddle},
    {.what = "all forwards first", .lags = {"3", "3", "3"}, .chunks = 4},
    {.what = "unlike lags", .devices = "cpu*3", .lags = {"2", "0", "1"}},
    {.what = "two chunks", .chunks = 2, .shards = 6},
    {.what = "a chunk for each microbatch", .chunks = 12, .shards = 1},
    {.what = "a shared expert", .devices = "cpu*3", .attention = 2, .changes = kShared},
    {.what = "tied embeddings", .devices = "cpu*3", .attention = 2, .changes = kTied},
    {.what = "a dense last layer", .changes = kLastDense},
    {.what = "a dense last layer, experts far behind",
     .lags = {"0", "0", "2"},
     .changes = kLastDense},
    {.what = "more lags than chunks", .lags = {"1", "0", "9"}, .chunks = 2, .shards = 6},
    {.what = "updates in the backward", .devices = "cpu*3", .clip = ClipKind::kPerExpert},
    {.what = "generic offloading",
     .plan = {.prefetch = false, .optimizer_at_end = true, .whole_layers = true}},
    {.what = "unlike speeds", .devices = "cpu/2:3,cpu/3:5", .budget = Budget::kAmple},
    {.what = "experts by shards", .expert_shards = 3},
    {.what = "experts by shards, three and one",
     .devices = "cpu*4",
     .attention = 3,
     .offloaded = {"6"},
     .changes = kShared,
     .plan = {.group_blocks = 8},
     .resumed = true,
     .expert_shards = 3},
    {.what = "experts by shards, two chunks, unlike lags",
     .devices = "cpu*3",
     .lags = {"1", "0", "1"},
     .chunks = 2,
     .shards = 6,
     .expert_shards = 6},
    {.what = "corrections move",
     .devices = "cpu*3",
     .attention = 2,
     .changes = kGlm,
     .resumed = true,
     .correction_speed = 0.01},
    {.what = "rows stay", .kept_rows = "100000"},
    {.what = "rows of the first waves stay",
     .devices = "cpu*3",
     .plan = {.group_blocks = 1},
     .kept_rows = "500"},
    {.what = "rows stay, two and two, some experts too",
     .devices = "cpu*4",
     .attention = 2,
     .offloaded = {"4"},
     .budget = Budget::kMiddle,
     .plan = {.group_blocks = 8},
     .kept_rows = "100000"},
    {.what = "rows stay as copies, by shards",
     .devices = "cpu*4",
     .attention = 3,
     .offloaded = {"6"},
     .changes = kShared,
     .plan = {.in_place = false},
     .resumed = true,
     .expert_shards = 3,
     .kept_rows = "100000"},
    {.what = "DeepSeek-V3, a dense first layer and a shared expert",
     .devices = "cpu*4",
     .attention = 2,
     .offloaded = {"2"},
     .budget = Budget::kAmple,
     .changes = kDeepSeek,
     .kept_rows = "auto"},
    {.what = "resumed", .devices = "cpu*3", .offloaded = {"2"}, .resumed = true},
    {.what = "two stages, breadth first", .devices = "cpu*4", .changes = kFourMoe, .stages = 2},
    {.what = "two stages, breadth first, ample, rows stay",
     .devices = "cpu*4",
     .lags = {"1", "1", "2"},
     .budget = Budget::kAmple,
     .changes = kFourMoe,
     .kept_rows = "100000",
     .stages = 2},
    {.what = "two stages, gpipe",
     .devices = "cpu*4",
     .changes = kFourMoe,
     .stages = 2,
     .order = kGpipe},
    {.what = "two stages, 1f1b, some experts stay",
     .devices = "cpu*4",
     .offloaded = {"5"},
     .changes = kFourMoe,
     .stages = 2,
     .order = kAlternate},
    {.what = "two stages, 1f1b, twelve chunks, middle",
     .devices = "cpu*4",
     .lags = {"0", "1", "1"},
     .budget = Budget::kMiddle,
     .chunks = 12,
     .shards = 1,
     .changes = kFourShared,
     .stages = 2,
     .order = kAlternate},
    {.what = "two stages, gpipe, an odd number of chunks",
     .devices = "cpu*4",
     .chunks = 3,
     .shards = 4,
     .changes = kFourTied,
     .resumed = true,
     .stages = 2,
     .order = kGpipe},
    {.what = "two stages of two and two, 1f1b, experts by shards",
     .devices = "cpu*8",
     .attention = 2,
     .offloaded = {"4"},
     .changes = kFourShared,
     .plan = {.group_blocks = 8},
     .expert_shards = 3,
     .stages = 2,
     .order = kAlternate},
    {.what = "three stages, unlike sizes and speeds",
     .devices = "cpu/2:3,cpu/3:5,cpu,cpu,cpu,cpu,cpu/2",
     .offloaded = {"2"},
     .budget = Budget::kAmple,
     .changes = kAllMoe,
     .clip = ClipKind::kPerExpert,
     .stages = 3},
    {.what = "two stages, a dense last layer",
     .devices = "cpu*5",
     .changes = kLastDense,
     .resumed = true,
     .kept_rows = "500",
     .stages = 2},
    {.what = "two copies", .devices = "cpu*4", .expert_shards = 3, .copies = 2},
    {.what = "two copies, ample, some experts stay, rows too",
     .devices = "cpu*4",
     .offloaded = {"5"},
     .budget = Budget::kAmple,
     .changes = kShared,
     .expert_shards = 3,
     .kept_rows = "100000",
     .copies = 2},
    {.what = "two copies of unlike sizes and speeds, middle",
     .devices = "cpu/2:3,cpu,cpu,cpu/3:5,cpu",
     .offloaded = {"2"},
     .budget = Budget::kMiddle,
     .changes = kTied,
     .plan = {.group_blocks = 8},
     .resumed = true,
     .expert_shards = 3,
     .copies = 2},
    {.what = "three copies, updates in the backward",
     .devices = "cpu*6",
     .chunks = 2,
     .shards = 6,
     .clip = ClipKind::kPerExpert,
     .expert_shards = 6,
     .copies = 3},
    {.what = "two stages of two copies, breadth first",
     .devices = "cpu*8",
     .changes = kFourMoe,
     .expert_shards = 3,
     .stages = 2,
     .copies = 2},
    {.what = "two stages of two copies, 1f1b, one with a device more",
     .devices = "cpu*9",
     .offloaded = {"3"},
     .changes = kFourShared,
     .plan = {.whole_layers = true},
     .resumed = true,
     .expert_shards = 3,
     .kept_rows = "500",
     .stages = 2,
     .order = kAlternate,
     .copies = 2},
};

// What devices have sent each other: those of one group of a stage, and those of different ones.
struct Sent {
  int64_t within = 0, between = 0;
};
Sent sent_in(const ZebraRow& row, const RunConfig& config, const Outcome& outcome) {
  const auto group_of = [&](int device) {
    const auto stages = static_cast<int>(row.stages), copies = static_cast<int>(row.copies);
    for (int group = 0; group < stages * copies; ++group) {
      const DeviceRange stage = devices_of_stage(group / copies, stages, config.num_devices());
      const DeviceRange copy = devices_of_stage(group % copies, copies, stage.count);
      if (copy.contains(device - stage.first)) return group;
    }
    return -1;
  };
  Sent sent;
  for (const auto& [pair, bytes] : outcome.sent_bytes) {
    (group_of(pair.first) == group_of(pair.second) ? sent.within : sent.between) += bytes;
  }
  return sent;
}

class ZebraPromise : public testing::TestWithParam<ZebraRow> {};

TEST_P(ZebraPromise, EveryRunGivesTheHashOfOneDevice) {
  const ZebraRow& row = GetParam();
  SCOPED_TRACE(row.what);
  const std::string expected = on_one_device(row);
  const std::unique_ptr<TinyRun> run = run_of(row);
  RunConfig& config = run->config();
  config.parallel.layout = LayoutKind::kZebra;
  config.train.devices = {row.devices};
  config.parallel.attention_devices = row.attention;
  config.parallel.offloaded = row.offloaded;
  config.parallel.lags = row.lags;
  config.parallel.kept_rows = row.kept_rows;
  config.parallel.stages = row.stages;
  config.parallel.order = row.order;
  config.parallel.copies = row.copies;
  config.plan = row.plan;
  ASSERT_TRUE(config.validate().ok()) << config.validate().message();
  set_budgets(row.budget, *run);
  SimStorage storage(7);
  const Outcome outcome = run_to_end(config, &storage, row.resumed ? kLayoutSteps / 2 : -1);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.sha256, expected);
  if (row.budget == Budget::kMinimum) expect_paged(outcome.paging);
  const Sent sent = sent_in(row, config, outcome);
  EXPECT_EQ(sent.within > 0, row.offloaded.front() != "24") << "no row has gone to an expert";
  EXPECT_EQ(sent.between > 0, row.stages * row.copies > 1);
}

// Nine devices, written out: stages of five and four, copies of three and two and of two and two.
TEST(ZebraGroups, EachHasBothKindsAndAllExperts) {
  const ZebraRow row{.what = "", .changes = kFourMoe, .expert_shards = 3};
  const std::unique_ptr<TinyRun> run = run_of(row);
  RunConfig& config = run->config();
  config.parallel.layout = LayoutKind::kZebra;
  config.parallel.offloaded = {"0"};
  config.parallel.attention_devices = 1;
  config.parallel.stages = config.parallel.copies = 2;
  config.train.devices = {"cpu*9"};
  const HfFolder folder = HfFolder::open(config.model.path).take();
  const RunShape shape = make_run_shape(model_shape(folder.config()), session_options(config));
  EXPECT_EQ(shape.stages.devices, (std::vector<int>{0, 0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(shape.copies.devices, (std::vector<int>{0, 0, 0, 1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(shape.shard_device, (std::vector<int>{0, 0, 3, 5, 5, 7}));
  for (int64_t l = 0; l < 4; ++l) {
    const bool first = shape.stage_of(l) == 0;
    for (int64_t e = 0; e < 24; ++e) {
      const int64_t record = shape.expert(l, e);
      const int seats[] = {first ? 1 + static_cast<int>(e % 2) : 6, first ? 4 : 8};
      EXPECT_EQ(shape.seat_of(record, 0), seats[0]) << l << " " << e;
      EXPECT_EQ(shape.seat_of(record, 1), seats[1]) << l << " " << e;
      EXPECT_EQ(shape.records[static_cast<size_t>(record)].device, seats[e < 12 ? 0 : 1]);
    }
  }
}

// Steps up to `end` over links that are late, each transfer by another time, on devices of which
// `attending` attend.
void zebra_steps(RunConfig config, int64_t attending, const std::string& kept, int64_t end,
                 SimStorage& storage, std::vector<double>& losses, std::string& hash) {
  config.parallel.layout = LayoutKind::kZebra;
  config.parallel.attention_devices = attending;
  config.parallel.offloaded = {kept};
  auto started = Trainer::start(config, !losses.empty(), &storage);
  ASSERT_TRUE(started.ok()) << started.status().message();
  Trainer& trainer = **started;
  trainer.session().slow_link({.latency_s = 1e-5, .jitter_s = 4e-4, .seed = 3});
  while (trainer.steps_done() < end) {
    auto step = trainer.step();
    ASSERT_TRUE(step.ok()) << step.status().message();
    losses.push_back(step->loss);
  }
  EXPECT_GT(trainer.session().link()->counts().size(), 2u);
  hash = outcome_hash(trainer, losses);  // saves
}

TEST(ZebraElsewhere, AZebraGoesOnAsAnother) {
  const ZebraRow row{.what = ""};
  const std::string expected = on_one_device(row);
  const std::unique_ptr<TinyRun> run = run_of(row);
  RunConfig& config = run->config();
  SimStorage storage(7);
  std::vector<double> losses;
  std::string hash;
  config.train.devices = {"cpu*4"};
  zebra_steps(config, 1, "2", kLayoutSteps / 2, storage, losses, hash);
  if (HasFatalFailure()) return;
  config.train.devices = {"cpu/2:3*3"};
  config.parallel.lags = {"1", "0", "1"};
  zebra_steps(config, 2, "7", kLayoutSteps, storage, losses, hash);
  EXPECT_EQ(hash, expected);
}

// What devices have sent each other in two steps, and rows of all experts and layers there.
struct SentInSteps {
  int64_t bytes = 0, rows = 0;
};
SentInSteps sent_with(const char* kept_rows) {
  const std::unique_ptr<TinyRun> run = run_of(ZebraRow{.what = ""});
  RunConfig& config = run->config();
  config.parallel.layout = LayoutKind::kZebra;
  config.train.devices = {"cpu*2"};
  config.parallel.offloaded = {"0"};
  config.parallel.kept_rows = kept_rows;
  config.plan.group_blocks = 1;
  SimStorage storage(7);
  SentInSteps sent;
  auto trainer = Trainer::start(config, false, &storage).take();
  for (int step = 0; step < 2; ++step) {
    const StepResult report = trainer->step().take();
    for (const auto& layers : report.routing) {
      for (const auto& experts : layers) {
        sent.rows += std::accumulate(experts.begin(), experts.end(), int64_t{0});
      }
    }
  }
  for (const auto& [pair, count] : trainer->session().link()->counts()) sent.bytes += count.bytes;
  return sent;
}

// All rows go from the device that attends to the one with the experts: of 32 bf16 values, once
// less where they stay.
TEST(ZebraRows, ThatStayAreNotSentAgain) {
  const SentInSteps again = sent_with("0"), some = sent_with("500"), none = sent_with("100000");
  ASSERT_GT(again.rows, 0);
  ASSERT_EQ(again.rows, none.rows);
  EXPECT_EQ(again.bytes - none.bytes, again.rows * 32 * 2);
  EXPECT_GT(some.bytes, none.bytes);
  EXPECT_LT(some.bytes, again.bytes);
}

TEST(ZebraLags, ThoseThatWaitForEachOtherAreRefused) {
  const std::unique_ptr<TinyRun> run = run_of(ZebraRow{.what = "", .changes = kAllMoe});
  RunConfig& config = run->config();
  config.parallel.layout = LayoutKind::kZebra;
  config.train.devices = {"cpu*2"};
  config.parallel.lags = {"1", "0", "2"};
  SimStorage storage(7);
  const Outcome outcome = run_to_end(config, &storage);
  EXPECT_EQ(outcome.status.code(), Exit::kUsage);
  EXPECT_NE(outcome.status.message().find("parallel.lags = 1 0 2"), std::string::npos)
      << outcome.status.message();
}

INSTANTIATE_TEST_SUITE_P(Rows, ZebraPromise, testing::ValuesIn(fewer_when_sanitized(kRows, 5)));

}  // namespace
}  // namespace pagoda
