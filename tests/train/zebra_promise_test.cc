// The root promise in zebra's order: devices that attend and devices with the experts work at
// different chunks of a step at a time, and the run ends with the SHA-256 of one device that takes
// all chunks layer by layer. Rows vary devices, experts left where attention is, lags, sums, models
// and budgets; those with the smallest budgets must have paged.
#include <gtest/gtest.h>

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
};

constexpr const char* kShared = R"({"architectures": ["Qwen2MoeForCausalLM"],
  "model_type": "qwen2_moe", "shared_expert_intermediate_size": 20, "mlp_only_layers": []})";
constexpr const char* kTied = R"({"tie_word_embeddings": true})";
constexpr const char* kGlm = R"({"architectures": ["Glm4MoeForCausalLM"],
  "model_type": "glm4_moe", "n_routed_experts": 24, "num_hidden_layers": 3})";
constexpr const char* kLastDense = R"({"mlp_only_layers": [0, 2], "num_hidden_layers": 3})";
constexpr const char* kAllMoe = R"({"mlp_only_layers": [], "num_hidden_layers": 3})";

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
    {.what = "resumed", .devices = "cpu*3", .offloaded = {"2"}, .resumed = true},
};

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
  config.plan = row.plan;
  ASSERT_TRUE(config.validate().ok()) << config.validate().message();
  set_budgets(row.budget, *run);
  SimStorage storage(7);
  const Outcome outcome = run_to_end(config, &storage, row.resumed ? kLayoutSteps / 2 : -1);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.sha256, expected);
  if (row.budget == Budget::kMinimum) expect_paged(outcome.paging);
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

INSTANTIATE_TEST_SUITE_P(Rows, ZebraPromise, testing::ValuesIn(kRows));

}  // namespace
}  // namespace pagoda
