// Experts that read rows where they are, and on one device add there what they give, against
// experts that read copies and write what is summed later: one hash, whatever the devices, the
// model and the sums, where pages move; and the bytes that are not copied and not written, counted.
#include <gtest/gtest.h>

#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

constexpr int64_t kSteps = kUnderSanitizer ? 2 : 4;

struct Row {
  const char* what;
  const char* devices = "cpu";
  int64_t attention = 0;
  bool all_in_place = true;    // no row comes from another device, and none goes back
  const char* changes = "{}";  // of the model
  DType dtype = DType::kBF16;
  int64_t chunks = 1, expert_shards = 1;
  ClipKind clip = ClipKind::kGlobal;
  std::vector<std::string> offloaded = {};  // zebra's
  PlanOptions plan = {};
};

constexpr const char* kShared = R"({"architectures": ["Qwen2MoeForCausalLM"],
  "model_type": "qwen2_moe", "shared_expert_intermediate_size": 20, "mlp_only_layers": []})";
constexpr const char* kGptOss = R"({"architectures": ["GptOssForCausalLM"],
  "model_type": "gpt_oss", "intermediate_size": 24, "sliding_window": 5, "swiglu_limit": 1.0,
  "attention_bias": true})";
// Rows of 80 bytes, which are no whole blocks.
constexpr const char* kNarrow = R"({"hidden_size": 40, "moe_intermediate_size": 10})";

const Row kRows[] = {
    {.what = "one device"},
    {.what = "one device, fp32", .dtype = DType::kF32},
    {.what = "narrow rows", .changes = kNarrow},
    {.what = "narrow rows, fp32", .changes = kNarrow, .dtype = DType::kF32},
    {.what = "groups", .clip = ClipKind::kPerExpert, .plan = {.group_blocks = 16}},
    {.what = "biases", .changes = kGptOss, .plan = {.group_blocks = 4}},
    {.what = "biases, fp32", .changes = kGptOss, .dtype = DType::kF32},
    {.what = "a shared expert", .changes = kShared, .plan = {.prefetch = false}},
    {.what = "microbatch-major", .plan = {.microbatch_major = true}},
    {.what = "whole layers", .plan = {.optimizer_at_end = true, .whole_layers = true}},
    {.what = "experts by shards of chunks", .chunks = 2, .expert_shards = 4},
    {.what = "two devices", .devices = "cpu*2", .all_in_place = false},
    {.what = "two devices, groups, biases",
     .devices = "cpu*2",
     .all_in_place = false,
     .changes = kGptOss,
     .plan = {.group_blocks = 16}},
    {.what = "three devices, two attend",
     .devices = "cpu*3",
     .attention = 2,
     .all_in_place = false,
     .plan = {.group_blocks = 4}},
    {.what = "zebra, some experts stay with attention",
     .devices = "cpu*2",
     .attention = 1,
     .all_in_place = false,
     .chunks = 4,
     .offloaded = {"5"}},
};

MemoryPlan planned(const RunConfig& config) {
  const HfFolder folder = std::move(HfFolder::open(config.model.path).value());
  return Session::plan(folder.config(), session_options(config)).take();
}

void configure(const Row& row, bool in_place, TinyRun& run) {
  RunConfig& config = run.config();
  config.train.steps = config.train.save_steps = kSteps;
  config.train.micro_batch_tokens = 32;  // four a step
  config.train.devices = {row.devices};
  config.train.chunks = row.chunks;
  if (row.chunks > 1) config.train.shards = 4 / row.chunks;
  config.train.expert_shards = row.expert_shards > 1 ? config.train.shards : 1;
  config.optim.clip = row.clip;
  config.parallel.attention_devices = row.attention;
  if (!row.offloaded.empty()) {
    config.parallel.layout = LayoutKind::kZebra;
    config.parallel.offloaded = row.offloaded;
  }
  config.plan = row.plan;
  config.plan.in_place = in_place;
}

// The smallest budgets with which rows can be read in place.
void use_budgets(TinyRun& run) {
  RunConfig& config = run.config();
  run.use_minimum_budgets();
  while (!planned(config).in_place) {
    config.memory.device = MemorySize::of_bytes(config.device_bytes() + 4 * kKiB);
  }
}

struct Done {
  std::string sha256;
  Executor::RowBytes bytes;
};

Done run(const RunConfig& config, bool pages) {
  SimStorage storage(7);
  auto started = Trainer::start(config, false, &storage);
  CHECK(started.ok(), "%s", started.status().message().c_str());
  Trainer& trainer = **started;
  const Paging before = Paging::so_far(trainer.session());
  std::vector<double> losses;
  while (trainer.steps_done() < config.train.steps) {
    auto step = trainer.step();
    CHECK(step.ok(), "%s", step.status().message().c_str());
    losses.push_back(step->loss);
  }
  if (pages) expect_paged(Paging::so_far(trainer.session()) - before);
  const std::string hash = outcome_hash(trainer, losses);
  return {hash, trainer.session().executor().row_bytes()};
}

class InPlace : public testing::TestWithParam<Row> {};

TEST_P(InPlace, GivesTheBitsOfCopiedRows) {
  const Row& row = GetParam();
  SCOPED_TRACE(row.what);
  Done done[2][2];  // [in place][paged]
  for (const bool in_place : {false, true}) {
    for (const bool paged : {false, true}) {
      TinyRun tiny(row.dtype, tiny_with(row.changes).c_str());
      configure(row, true, tiny);
      if (paged) use_budgets(tiny);
      tiny.config().plan.in_place = in_place;
      ASSERT_EQ(planned(tiny.config()).in_place, in_place);
      done[in_place][paged] = run(tiny.config(), paged);
      EXPECT_EQ(done[in_place][paged].sha256, done[false][false].sha256) << in_place << paged;
    }
  }
  const Executor::RowBytes &copied = done[false][true].bytes, &in_place = done[true][true].bytes;
  EXPECT_EQ(copied.in_place, 0);
  EXPECT_GT(in_place.in_place, 0);
  EXPECT_EQ(in_place.in_place + in_place.copied, copied.copied);  // each row goes one way
  EXPECT_EQ(in_place.copied == 0, row.all_in_place);
  expect_in_place(copied, false, false);
  expect_in_place(in_place, true, row.all_in_place);
  EXPECT_EQ(in_place.added + in_place.combined, copied.combined);
}

INSTANTIATE_TEST_SUITE_P(Rows, InPlace, testing::ValuesIn(kRows));

// Every choice of a token is a row of d bf16 forward; backward of twice that and a weight. It gives
// a row of d bf16 in each. All tokens but padding choose k experts in each layer that has some.
TEST(InPlaceBytes, AreThoseOfTheRows) {
  TinyRun tiny;
  configure({.what = ""}, true, tiny);
  const Done done = run(tiny.config(), false);
  constexpr int64_t kHidden = 32, kChoices = 2, kMoeLayers = 2;
  const int64_t row = kHidden * 2 + 2 * kHidden * 2 + 4;
  EXPECT_EQ(done.bytes.in_place % (row * kChoices * kMoeLayers), 0);
  const int64_t tokens = done.bytes.in_place / (row * kChoices * kMoeLayers);
  EXPECT_LE(tokens, kSteps * tiny.config().train.tokens_per_step);
  EXPECT_GT(tokens, kSteps * tiny.config().train.tokens_per_step / 2);
  EXPECT_EQ(done.bytes.added, tokens * kChoices * kMoeLayers * 2 * kHidden * 2);
}

// A device without room for all rows of its microbatches copies them, and its least budget is that.
TEST(InPlaceMemory, LeastBudgetsAreThoseOfCopies) {
  TinyRun tiny;
  configure({.what = ""}, true, tiny);
  tiny.config().data.sequence_len = tiny.config().train.micro_batch_tokens = 16;
  tiny.config().train.tokens_per_step = 12 * 16;
  tiny.use_minimum_budgets();
  const MemoryPlan plan = planned(tiny.config());
  EXPECT_FALSE(plan.in_place);
  tiny.config().plan.in_place = false;
  EXPECT_EQ(planned(tiny.config()).min_device_bytes, plan.min_device_bytes);
  tiny.config().plan.in_place = true;
  tiny.config().memory.device = MemorySize::of_bytes(plan.whole_device_bytes);
  EXPECT_TRUE(planned(tiny.config()).in_place);
}

}  // namespace
}  // namespace pagoda
