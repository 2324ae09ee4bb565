// The root promise over stages: groups of devices that have layers of their own, through which
// chunks follow each other in one of three orders, end with the SHA-256 of one device that takes
// all chunks layer by layer. Rows vary stages, devices, orders, sums, models and budgets; those
// with the smallest budgets must have paged.
#include <gtest/gtest.h>

#include "tests/testing/plan/chunks_in_flight.h"
#include "tests/train/layout_run.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

constexpr PipelineOrder kGpipe = PipelineOrder::kGpipe;
constexpr PipelineOrder kAlternate = PipelineOrder::kOneForwardOneBackward;
constexpr PipelineOrder kBreadth = PipelineOrder::kBreadthFirst;

constexpr const char* kAllMoe = R"({"mlp_only_layers": [], "num_hidden_layers": 4})";
constexpr const char* kTied =
    R"({"mlp_only_layers": [1], "num_hidden_layers": 4, "tie_word_embeddings": true})";
constexpr const char* kSeven =
    R"({"mlp_only_layers": [2], "num_hidden_layers": 7, "tie_word_embeddings": true})";
constexpr const char* kShared = R"({"architectures": ["Qwen2MoeForCausalLM"],
  "model_type": "qwen2_moe", "shared_expert_intermediate_size": 20, "mlp_only_layers": [],
  "num_hidden_layers": 4})";
constexpr const char* kGlm = R"({"architectures": ["Glm4MoeForCausalLM"],
  "model_type": "glm4_moe", "n_routed_experts": 24, "num_hidden_layers": 3})";

struct PipelineRow {
  const char* what;
  int64_t stages = 2;
  PipelineOrder order = kBreadth;
  const char* devices = "cpu*2";
  Budget budget = Budget::kMinimum;
  int64_t chunks = 4, shards = 3;  // of twelve microbatches
  const char* changes = kAllMoe;   // of the model
  ClipKind clip = ClipKind::kGlobal;
  PlanOptions plan = {};
  bool resumed = false;
  int64_t expert_shards = 1;
  double correction_speed = 0;
  int64_t copies = 1;
  std::vector<int64_t> layers = {};  // of each stage; empty: as it comes
};

const PipelineRow kRows[] = {
    {.what = "two stages, gpipe, ample", .order = kGpipe, .budget = Budget::kAmple},
    {.what = "two stages, gpipe", .order = kGpipe},
    {.what = "two stages, 1f1b, ample", .order = kAlternate, .budget = Budget::kAmple},
    {.what = "two stages, 1f1b", .order = kAlternate},
    {.what = "two stages, breadth first, ample", .budget = Budget::kAmple},
    {.what = "two stages, breadth first"},
    {.what = "three stages, 1f1b, middle",
     .stages = 3,
     .order = kAlternate,
     .devices = "cpu*3",
     .budget = Budget::kMiddle},
    {.what = "four stages, breadth first",
     .stages = 4,
     .devices = "cpu*4",
     .budget = Budget::kMiddle},
    {.what = "tied, gpipe", .order = kGpipe, .changes = kTied},
    {.what = "tied, 1f1b, two and two", .order = kAlternate, .devices = "cpu*4", .changes = kTied},
    {.what = "tied, breadth first, four and four", .devices = "cpu*8", .changes = kTied},
    {.what = "shared experts, 1f1b", .order = kAlternate, .changes = kShared},
    {.what = "shared experts, breadth first, two and two", .devices = "cpu*4", .changes = kShared},
    {.what = "two and one, unlike speeds",
     .order = kAlternate,
     .devices = "cpu/2:3,cpu/3:5,cpu/2",
     .budget = Budget::kAmple},
    {.what = "unequal layers, gpipe", .order = kGpipe, .devices = "cpu/2,cpu/6", .layers = {3, 1}},
    {.what = "unequal layers, 1f1b, resumed",
     .order = kAlternate,
     .devices = "cpu/6,cpu/2",
     .changes = kTied,
     .resumed = true,
     .layers = {1, 3}},
    {.what = "unequal layers, breadth first",
     .stages = 3,
     .devices = "cpu/9,cpu/3*2",
     .changes = kSeven,
     .layers = {1, 3, 3}},
    {.what = "updates in the backward", .order = kAlternate, .clip = ClipKind::kPerExpert},
    {.what = "generic offloading",
     .order = kGpipe,
     .plan = {.prefetch = false, .optimizer_at_end = true, .whole_layers = true}},
    {.what = "one chunk", .order = kAlternate, .chunks = 1, .shards = 4},
    {.what = "a chunk for each microbatch", .order = kAlternate, .chunks = 12, .shards = 1},
    {.what = "experts by shards", .order = kAlternate, .devices = "cpu*4", .expert_shards = 3},
    {.what = "experts by shards, groups",
     .devices = "cpu*4",
     .chunks = 2,
     .shards = 6,
     .changes = kShared,
     .plan = {.group_blocks = 8},
     .resumed = true,
     .expert_shards = 6},
    {.what = "corrections move",
     .order = kAlternate,
     .devices = "cpu*3",
     .changes = kGlm,
     .resumed = true,
     .correction_speed = 0.01},
    {.what = "resumed", .order = kGpipe, .devices = "cpu*3", .resumed = true},
    {.what = "two stages of two copies", .devices = "cpu*4", .expert_shards = 3, .copies = 2},
    {.what = "two stages of two copies, two and one, 1f1b",
     .order = kAlternate,
     .devices = "cpu*6",
     .changes = kShared,
     .resumed = true,
     .expert_shards = 3,
     .copies = 2},
    {.what = "copies alone, ample",
     .stages = 1,
     .devices = "cpu*3",
     .budget = Budget::kAmple,
     .expert_shards = 3,
     .copies = 3},
};

class PipelinePromise : public testing::TestWithParam<PipelineRow> {};

TEST_P(PipelinePromise, EveryRunGivesTheHashOfOneDevice) {
  const PipelineRow& row = GetParam();
  SCOPED_TRACE(row.what);
  const std::string expected = on_one_device(row);
  const std::unique_ptr<TinyRun> run = run_of(row);
  RunConfig& config = run->config();
  config.parallel.layout = LayoutKind::kPipeline;
  config.parallel.stages = row.stages;
  config.parallel.order = row.order;
  config.parallel.copies = row.copies;
  config.train.devices = {row.devices};
  config.plan = row.plan;
  ASSERT_TRUE(config.validate().ok()) << config.validate().message();
  if (!row.layers.empty()) {
    const HfFolder folder = HfFolder::open(config.model.path).take();
    const RunShape shape = make_run_shape(model_shape(folder.config()), session_options(config));
    EXPECT_EQ(shape.stages.layer_counts(shape.num_layers), row.layers);
  }
  set_budgets(row.budget, *run);
  SimStorage storage(7);
  const Outcome outcome = run_to_end(config, &storage, row.resumed ? kLayoutSteps / 2 : -1);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.sha256, expected);
  if (row.budget == Budget::kMinimum) expect_paged(outcome.paging);
}

INSTANTIATE_TEST_SUITE_P(Rows, PipelinePromise, testing::ValuesIn(kRows));

// [stage] the most chunks in flight in the first step of the row's run, a device a stage.
std::vector<int64_t> executed_in_flight(const PipelineRow& row) {
  const std::unique_ptr<TinyRun> run = run_of(row);
  RunConfig& config = run->config();
  config.parallel.layout = LayoutKind::kPipeline;
  config.parallel.stages = row.stages;
  config.parallel.order = row.order;
  config.train.devices = cpus(row.stages);
  set_budgets(row.budget, *run);
  SimStorage storage(7);
  Trace trace;
  auto started = Trainer::start(config, false, &storage, &trace);
  CHECK(started.ok(), "%s", started.status().message().c_str());
  Trainer& trainer = **started;
  trace.start();
  const auto stepped = trainer.step();
  CHECK(stepped.ok(), "%s", stepped.status().message().c_str());
  trainer.session().executor().synchronize();
  trace.stop();
  std::vector<int64_t> most;
  for (int64_t s = 0; s < row.stages; ++s) {
    const Trace::Lane lane = trace.lane("streams", strf("compute %lld", (long long)s));
    most.push_back(traced_in_flight(trace.spans(lane), 12 / row.chunks));
  }
  return most;
}

TEST(PipelineRun, StagesHaveTheChunksInFlightOfTheirSchedule) {
  for (const PipelineOrder order : {kGpipe, kAlternate, kBreadth}) {
    for (int stages = 2; stages <= 4; ++stages) {
      for (const int64_t chunks : {2, 6}) {
        PipelineRow row{.what = "in flight", .stages = stages, .order = order};
        row.budget = chunks == 2 ? Budget::kMinimum : Budget::kAmple;
        row.chunks = chunks;
        row.shards = 1;
        std::vector<int64_t> expected;
        for (int s = 0; s < stages; ++s) {
          expected.push_back(chunks_in_flight(order, stages, s, chunks));
        }
        EXPECT_EQ(executed_in_flight(row), expected)
            << "order " << static_cast<int>(order) << ", " << stages << " stages, " << chunks
            << " chunks";
      }
    }
  }
}

}  // namespace
}  // namespace pagoda
