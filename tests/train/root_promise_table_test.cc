// The root promise as a table: budgets, directories, storage kinds, completion orders, devices,
// page slots, pins, interruptions and every option of the plan, in combinations. Each row is a run
// whose SHA-256 over losses, weights and optimizer state must be that of a run with room for
// everything, and which must have paged: fetched, evicted, written back. A second table has so many
// experts that the plan keeps some of their pages in the host, a third so many microbatches that
// their in-layer buffers page too.
// (tests/train/root_promise_test.cc varies one thing at a time, and further.)
#include <gtest/gtest.h>

#include <set>

#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_config.h"
#include "tests/testing/tiny_run.h"
#include "train/saved_layers.h"

namespace pagoda {
namespace {

// Sanitized builds look for races: every row, but a short run.
constexpr int64_t kManySteps = 6;  // other bits of a gradient have come to weights in bf16
constexpr int64_t kSteps = kUnderSanitizer ? 2 : kManySteps;

enum class Drive { kSim, kThreads, kUring };

struct Row {
  const char* what;
  int64_t more_device = 0, more_host = 0;  // KiB beyond the smallest budgets
  Drive drive = Drive::kSim;
  uint64_t seed = 1;      // of the simulated drive's completion order
  int directories = 1;
  const char* devices = "cpu";
  int64_t attention = 0;  // devices that attend; 0: all, or as many as there are shards
  PlaceKind place = PlaceKind::kStep;
  ShareKind shares = ShareKind::kSpeed;
  int page_slots = 2;
  const char* pin = "off";
  bool resumed = false;   // halfway; needs two page slots
  PlanOptions plan = {};
};

constexpr PlanOptions kNoPrefetch{.prefetch = false};
constexpr PlanOptions kAtEnd{.optimizer_at_end = true};
constexpr PlanOptions kWhole{.whole_layers = true};
constexpr PlanOptions kByMicrobatch{.microbatch_major = true};
constexpr PlanOptions kPadded{.padded_experts = true};
constexpr PlanOptions kPairs{.group_blocks = 2};
constexpr PlanOptions kCopied{.in_place = false};
constexpr PlanOptions kGroups{.group_blocks = 16};
// The order of generic offloading.
constexpr PlanOptions kGeneric{.prefetch = false, .optimizer_at_end = true, .whole_layers = true};
constexpr PlanOptions kAll{.prefetch = false, .optimizer_at_end = true, .whole_layers = true,
                           .microbatch_major = true, .padded_experts = true};
constexpr PlanOptions kAllInGroups{.prefetch = false, .optimizer_at_end = true,
                                   .whole_layers = true, .microbatch_major = true,
                                   .group_blocks = 3};

const Row kRows[] = {
    {.what = "smallest budgets"},
    {.what = "another order of completions", .seed = 2},
    {.what = "more device", .more_device = 150, .seed = 3},
    {.what = "more host", .more_host = 300, .seed = 4},
    {.what = "more of both, resumed",
     .more_device = 300,
     .more_host = 400,
     .seed = 5,
     .resumed = true},
    {.what = "threads", .drive = Drive::kThreads},
    {.what = "threads, two drives", .drive = Drive::kThreads, .directories = 2, .page_slots = 1},
    {.what = "io_uring", .drive = Drive::kUring, .resumed = true},
    {.what = "io_uring, three drives", .drive = Drive::kUring, .directories = 3},
    {.what = "io_uring, more host", .more_host = 200, .drive = Drive::kUring, .page_slots = 1},
    {.what = "two drives", .seed = 6, .directories = 2},
    {.what = "one slot a page", .seed = 7, .page_slots = 1},
    {.what = "two devices", .seed = 8, .devices = "cpu*2"},
    {.what = "two devices, one attends", .seed = 35, .devices = "cpu*2", .attention = 1},
    {.what = "three devices, two drives", .seed = 9, .directories = 2, .devices = "cpu*3"},
    {.what = "two devices, io_uring", .drive = Drive::kUring, .devices = "cpu*2", .resumed = true},
    {.what = "three devices, more of both",
     .more_device = 60,
     .more_host = 500,
     .seed = 10,
     .devices = "cpu*3",
     .page_slots = 1},
    {.what = "pinned", .more_device = 120, .seed = 11, .pin = "25%", .resumed = true},
    {.what = "pinned, two devices",
     .more_device = 80,
     .seed = 12,
     .devices = "cpu*2",
     .pin = "100%"},
    {.what = "no prefetch", .seed = 13, .plan = kNoPrefetch},
    {.what = "no prefetch, three devices",
     .drive = Drive::kThreads,
     .devices = "cpu*3",
     .plan = kNoPrefetch},
    {.what = "optimizer at the end", .more_host = 100, .seed = 14, .page_slots = 1, .plan = kAtEnd},
    {.what = "optimizer at the end, resumed",
     .seed = 15,
     .devices = "cpu*2",
     .resumed = true,
     .plan = kAtEnd},
    {.what = "whole layers", .seed = 16, .directories = 2, .plan = kWhole},
    {.what = "whole layers, pinned", .more_device = 90, .seed = 17, .pin = "50%", .plan = kWhole},
    {.what = "microbatch-major", .seed = 18, .resumed = true, .plan = kByMicrobatch},
    {.what = "microbatch-major, two devices",
     .drive = Drive::kUring,
     .devices = "cpu*2",
     .plan = kByMicrobatch},
    {.what = "padded experts", .more_device = 50, .seed = 21, .resumed = true, .plan = kPadded},
    {.what = "generic offloading", .seed = 19, .page_slots = 1, .plan = kGeneric},
    {.what = "every switch, two drives, three devices",
     .seed = 20,
     .directories = 2,
     .devices = "cpu*3",
     .resumed = true,
     .plan = kAll},
    {.what = "copied rows", .more_device = 150, .seed = 56, .plan = kCopied},
    {.what = "copied rows, two devices, resumed",
     .more_device = 300,
     .seed = 57,
     .devices = "cpu*2",
     .resumed = true,
     .plan = kCopied},
    {.what = "groups of two", .seed = 25, .plan = kPairs},
    {.what = "groups of sixteen, resumed",
     .more_device = 20,
     .seed = 26,
     .resumed = true,
     .plan = kGroups},
    {.what = "two devices, experts at home",
     .seed = 41,
     .devices = "cpu*2",
     .place = PlaceKind::kHome},
    {.what = "ten to six", .seed = 40, .devices = "cpu/1.2,cpu/2", .resumed = true},
    {.what = "uniform shares of unequal devices",
     .seed = 42,
     .devices = "cpu/3,cpu/2:1",
     .shares = ShareKind::kUniform},
    {.what = "the fast one attends",
     .drive = Drive::kThreads,
     .devices = "cpu/3,cpu/2:1",
     .attention = 1,
     .plan = kGroups},
    {.what = "groups, two devices", .drive = Drive::kThreads, .devices = "cpu*2", .plan = kGroups},
    {.what = "groups and other switches", .seed = 27, .plan = kAllInGroups},
};
static_assert(std::size(kRows) >= 24);

std::unique_ptr<Storage> storage_of(const Row& row, const TinyRun& run) {
  if (row.drive == Drive::kSim) return std::make_unique<SimStorage>(row.seed);
  const IoKind kind = row.drive == Drive::kUring ? IoKind::kUring : IoKind::kThreads;
  auto storage = open_storage(kind, run.dir().path());
  return storage.ok() ? storage.take() : nullptr;
}

void configure(const Row& row, TinyRun& run) {
  RunConfig& config = run.config();
  config.train.steps = kSteps;
  config.train.save_steps = row.page_slots == 2 ? kSteps : 0;
  config.train.devices = {row.devices};
  config.parallel.attention_devices = row.attention;
  config.parallel.place = row.place;
  config.parallel.shares = row.shares;
  config.plan = row.plan;
  config.memory.pin = row.pin;
  for (int i = 0; i < row.directories && row.directories > 1; ++i) {
    config.memory.disk.push_back(run.dir().file(strf("drive-%d", i)));
  }
  run.use_minimum_budgets();
  config.memory.device = MemorySize::of_bytes(config.device_bytes() + row.more_device * kKiB);
  config.memory.host = MemorySize::of_bytes(config.host_bytes() + row.more_host * kKiB);
}

SessionOptions options_of(const RunConfig& config, const HfFolder& folder) {
  SessionOptions options = session_options(config);
  CHECK(set_frozen(config, folder.config(), options).ok());
  return options;
}

// Layers that a run keeps (train/saved_layers.h), and how many there are.
std::pair<int64_t, int64_t> layers_kept(const RunConfig& config) {
  const HfFolder folder = std::move(HfFolder::open(config.model.path).value());
  const SessionOptions options = options_of(config, folder);
  const MemoryPlan memory = Session::plan(folder.config(), options).take();
  return {saved_layers(folder.config(), options, memory), folder.config().num_layers};
}

std::string hash_with_room(TinyRun& run, int64_t steps = kSteps) {
  const auto [kept, layers] = layers_kept(run.config());
  CHECK(kept == layers, "the reference computes again");
  run.config().train.steps = run.config().train.save_steps = steps;
  SimStorage storage(99);
  const Outcome outcome = run_to_end(run.config(), &storage);
  CHECK(outcome.status.ok(), "%s", outcome.status.message().c_str());
  CHECK(outcome.paging.write_backs == 0, "the reference pages");
  const int64_t added = outcome.row_bytes.added;
  CHECK(added > 0 && outcome.row_bytes.combined == 0, "the reference does not add in place");
  return outcome.sha256;
}

// Whether the plan has room for rows in place, and whether the only device adds to sums there.
void expect_planned_rows(const RunConfig& config, const Executor::RowBytes& bytes) {
  const HfFolder folder = std::move(HfFolder::open(config.model.path).value());
  const SessionOptions options = options_of(config, folder);
  const bool in_place = Session::plan(folder.config(), options).take().in_place;
  expect_in_place(bytes, in_place, in_place && options.num_devices() == 1);
}

void expect_hash(const Row& row, TinyRun& run, const std::string& resident) {
  const auto storage = storage_of(row, run);
  if (!storage) GTEST_SKIP() << "SKIPPED: io_uring is not available here";
  const Outcome outcome = run_to_end(run.config(), storage.get(), row.resumed ? kSteps / 2 : -1);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.sha256, resident);
  expect_paged(outcome.paging);
  expect_planned_rows(run.config(), outcome.row_bytes);
}

class RootPromiseTable : public testing::TestWithParam<Row> {};

TEST_P(RootPromiseTable, EveryRunGivesOneHash) {
  const Row& row = GetParam();
  SCOPED_TRACE(testing::Message() << row.what << ", seed " << row.seed);
  static const std::string resident = hash_with_room(*std::make_unique<TinyRun>());
  TinyRun run;
  configure(row, run);
  expect_hash(row, run, resident);
}

INSTANTIATE_TEST_SUITE_P(Rows, RootPromiseTable, testing::ValuesIn(fewer_when_sanitized(kRows, 4)));

constexpr const char* kManyExperts = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 272,
  "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "intermediate_size": 48, "moe_intermediate_size": 16, "num_experts": 96,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
  "initializer_range": 0.1, "max_position_embeddings": 256, "attention_bias": false})";

// Where the host has room for a part of the experts' states or waiting gradients.
struct KeptRow {
  PageKind kind = PageKind::kState;
  Row row;
};

const KeptRow kKeptRows[] = {
    {PageKind::kState,
     {.what = "some states", .more_host = 1000, .drive = Drive::kThreads, .resumed = true}},
    {PageKind::kState, {.what = "half the states", .more_host = 3500, .seed = 22}},
    {PageKind::kState,
     {.what = "states, two devices", .more_host = 3500, .seed = 23, .devices = "cpu*2"}},
    {PageKind::kGradient, {.what = "gradients", .more_host = 6000, .seed = 24}},
};

struct Planned {
  MemoryPlan memory;
  PageTable pages;
};

Planned plan_of(const RunConfig& config) {
  const HfFolder folder = std::move(HfFolder::open(config.model.path).value());
  const SessionOptions options = options_of(config, folder);
  return {Session::plan(folder.config(), options).take(),
          PageTable(make_run_shape(model_shape(folder.config()), options))};
}

// Pages of that kind which the plan keeps in the host (SlotClass::host_kept).
int32_t kept_in_host(const RunConfig& config, PageKind kind) {
  const Planned plan = plan_of(config);
  int32_t kept = 0;
  for (size_t c = 0; c < plan.memory.classes.size(); ++c) {
    if (plan.pages.classes[c].kind == kind) kept += plan.memory.classes[c].host_kept;
  }
  return kept;
}

class RootPromiseKept : public testing::TestWithParam<KeptRow> {};

TEST_P(RootPromiseKept, EveryRunGivesOneHash) {
  const Row& row = GetParam().row;
  SCOPED_TRACE(testing::Message() << row.what << ", seed " << row.seed);
  static const std::string resident =
      hash_with_room(*std::make_unique<TinyRun>(DType::kBF16, kManyExperts));
  TinyRun run(DType::kBF16, kManyExperts);
  configure(row, run);
  ASSERT_GE(kept_in_host(run.config(), GetParam().kind), 10);
  expect_hash(row, run, resident);
}

INSTANTIATE_TEST_SUITE_P(Rows, RootPromiseKept,
                         testing::ValuesIn(fewer_when_sanitized(kKeptRows, 2)));

struct LayerBufferRow {
  Row row;
  const char* changes = "{}";  // of the model
  DType dtype = DType::kBF16;
  int64_t chunks = 1, shards = 0;  // train.chunks and train.shards of the eight microbatches
  int64_t expert_shards = 1;
  double correction_speed = 0;
  double balance_loss = -1, z_loss = 0;
  std::vector<std::string> freeze = {};
};

const LayerBufferRow kLayerBufferRows[] = {
    {{.what = "smallest budgets"}},
    {{.what = "some on the device", .more_device = 24, .seed = 25, .resumed = true}},
    {{.what = "some in the host", .more_host = 200, .drive = Drive::kUring}},
    {{.what = "two devices", .seed = 26, .devices = "cpu*2"}},
    {{.what = "four devices", .seed = 36, .devices = "cpu*4"}},
    {{.what = "four devices, three attend",
      .more_device = 12,
      .drive = Drive::kThreads,
      .devices = "cpu*4",
      .attention = 3,
      .resumed = true},
     kShared},
    {{.what = "three devices, tied embeddings, fp32",
      .seed = 37,
      .devices = "cpu*3",
      .plan = kGroups},
     kTied,
     DType::kF32,
     2,
     4},
    {{.what = "three devices, every switch",
      .seed = 38,
      .devices = "cpu*3",
      .page_slots = 1,
      .plan = kAll},
     kShared},
    {{.what = "microbatch-major", .drive = Drive::kThreads, .plan = kByMicrobatch}},
    {{.what = "padded experts", .seed = 28, .plan = kPadded}},
    {{.what = "every switch", .seed = 27, .page_slots = 1, .plan = kAll}},
    {{.what = "a shared expert, dense layers", .seed = 29, .resumed = true}, kShared},
    {{.what = "tied embeddings", .seed = 30}, kTied},
    {{.what = "groups of experts, a plain shared expert", .seed = 39, .resumed = true}, kGlm},
    {{.what = "the same on three devices, every switch",
      .seed = 40,
      .devices = "cpu*3",
      .page_slots = 1,
      .plan = kAll},
     kGlm},
    {{.what = "corrections move", .seed = 54, .resumed = true}, kGlm, DType::kBF16, 1, 0, 1, 0.01},
    {{.what = "the same in chunks on three devices, every switch, fp32",
      .seed = 55,
      .devices = "cpu*3",
      .page_slots = 1,
      .plan = kAll},
     kGlm,
     DType::kF32,
     2,
     4,
     1,
     0.01},
    {{.what = "a balance loss and a z-loss", .seed = 56, .resumed = true},
     kShared,
     DType::kBF16,
     1,
     0,
     1,
     0,
     0.2,
     0.1},
    {{.what = "the same in chunks on three devices, every switch, fp32",
      .seed = 57,
      .devices = "cpu*3",
      .page_slots = 1,
      .plan = kAll},
     kTied,
     DType::kF32,
     2,
     4,
     1,
     0,
     0.2,
     0.1},
    {{.what = "frozen experts and routers", .seed = 58, .resumed = true},
     kShared,
     DType::kBF16,
     1,
     0,
     1,
     0,
     -1,
     0,
     {"experts", "router"}},
    {{.what = "frozen embedding, keys, an expert, on three devices, every switch, fp32",
      .seed = 59,
      .devices = "cpu*3",
      .page_slots = 1,
      .plan = kAll},
     kTied,
     DType::kF32,
     2,
     4,
     4,
     0,
     -1,
     0,
     {"embed", "*.k_proj.weight", "model.layers.*.mlp.experts.1.*"}},
    {{.what = "convolutions", .seed = 41, .resumed = true}, kLfm2},
    {{.what = "convolutions on three devices, every switch",
      .seed = 42,
      .devices = "cpu*3",
      .page_slots = 1,
      .plan = kAll},
     kLfm2},
    {{.what = "multipliers", .seed = 51, .resumed = true}, kGranite},
    {{.what = "the same on three devices, every switch",
      .seed = 52,
      .devices = "cpu*3",
      .page_slots = 1,
      .plan = kAll},
     kGranite},
    {{.what = "norms of full width, two devices", .seed = 53, .devices = "cpu*2", .resumed = true},
     kMiniMax},
    {{.what = "biases, sinks and windows", .seed = 45, .resumed = true}, kGptOss},
    {{.what = "the same on three devices, every switch",
      .seed = 46,
      .devices = "cpu*3",
      .page_slots = 1,
      .plan = kAll},
     kGptOss},
    {{.what = "the same, experts by shards, two devices", .seed = 47, .devices = "cpu*2"},
     kGptOss,
     DType::kBF16,
     1,
     0,
     8},
    {{.what = "latent attention", .seed = 48, .resumed = true}, kLatent},
    {{.what = "latent attention on three devices, every switch",
      .seed = 49,
      .devices = "cpu*3",
      .page_slots = 1,
      .plan = kAll},
     kLatent},
    {{.what = "latent attention without one of queries", .seed = 60, .devices = "cpu*2"},
     kLatentV2},
    {{.what = "latent attention, dense layers in between", .seed = 61, .resumed = true},
     kLatentLite},
    {{.what = "windows in late layers", .seed = 62, .devices = "cpu*2", .resumed = true}, kDots},
    {{.what = "windows everywhere", .seed = 63, .devices = "cpu*2"}, kMixtral},
    {{.what = "norms of full width", .seed = 64, .resumed = true}, kOlmoe},
    // In place they need no exchange pages, and the smallest budgets have room for all buffers.
    {{.what = "fp32, copied rows", .drive = Drive::kThreads, .plan = kCopied}, "{}", DType::kF32},
    {{.what = "one shard", .seed = 31, .resumed = true}, "{}", DType::kBF16, 1, 1},
    {{.what = "chunks of two shards, two devices", .seed = 32, .devices = "cpu*2", .plan = kGroups},
     "{}",
     DType::kBF16,
     2,
     2},
    {{.what = "chunks, microbatch-major", .seed = 33, .plan = kByMicrobatch},
     kShared,
     DType::kBF16,
     4,
     2},
    {{.what = "chunks, tied embeddings, fp32", .seed = 34, .plan = kPadded},
     kTied,
     DType::kF32,
     2,
     4},
    {{.what = "experts by shards", .seed = 41, .resumed = true}, "{}", DType::kBF16, 1, 0, 8},
    {{.what = "experts by shards, two devices", .seed = 42, .devices = "cpu*2", .plan = kGroups},
     kShared,
     DType::kBF16,
     1,
     0,
     8},
    {{.what = "experts by shards of chunks, three devices",
      .drive = Drive::kThreads,
      .devices = "cpu*3",
      .plan = kPairs},
     "{}",
     DType::kF32,
     2,
     4,
     4},
    {{.what = "experts by shards, every switch", .seed = 43, .page_slots = 1, .plan = kAll},
     kShared,
     DType::kBF16,
     2,
     2,
     2},
    {{.what = "experts by shards, four devices, switches",
      .seed = 44,
      .devices = "cpu*4",
      .resumed = true,
      .plan = kAllInGroups},
     kGlm,
     DType::kBF16,
     1,
     4,
     4},
};

// Eight microbatches a step, and losses of held-out rows between steps.
std::unique_ptr<TinyRun> small_microbatches(const LayerBufferRow& row) {
  auto run = std::make_unique<TinyRun>(row.dtype, tiny_with(row.changes).c_str());
  run->config().data.sequence_len = run->config().train.micro_batch_tokens = 16;
  run->config().train.eval_steps = kSteps / 2;
  run->config().train.chunks = row.chunks;
  run->config().train.shards = row.shards;
  run->config().train.expert_shards = row.expert_shards;
  run->config().optim.correction_speed = row.correction_speed;
  run->config().optim.balance_loss = row.balance_loss;
  run->config().optim.z_loss = row.z_loss;
  run->config().train.freeze = row.freeze;
  return run;
}

// Pages of in-layer buffers that have no room on the device, or there and in the host.
std::pair<int64_t, int64_t> layer_buffers_beyond(const RunConfig& config) {
  const Planned plan = plan_of(config);
  int64_t device = 0, host = 0;
  for (size_t c = 0; c < plan.memory.classes.size(); ++c) {
    const PageTable::Class& info = plan.pages.classes[c];
    if (info.kind != PageKind::kLayerBuffer) continue;
    const SlotClass& slots = plan.memory.classes[c];
    host += info.num_pages - slots.host_slots;
    for (const int32_t on_device : slots.device_slots) {
      device -= on_device;
      host -= on_device;
    }
    device += info.num_pages;
  }
  return {device, host};
}

class RootPromiseInLayer : public testing::TestWithParam<LayerBufferRow> {};

TEST_P(RootPromiseInLayer, EveryRunGivesOneHash) {
  const Row& row = GetParam().row;
  SCOPED_TRACE(testing::Message() << row.what << ", seed " << row.seed);
  const std::string resident = hash_with_room(*small_microbatches(GetParam()));
  const std::unique_ptr<TinyRun> run = small_microbatches(GetParam());
  configure(row, *run);
  const auto [beyond_device, beyond_host] = layer_buffers_beyond(run->config());
  EXPECT_GT(beyond_device, 0);
  if (row.more_device + row.more_host == 0) {
    EXPECT_GT(beyond_host, 0);
  }
  expect_hash(row, *run, resident);
}

INSTANTIATE_TEST_SUITE_P(Rows, RootPromiseInLayer,
                         testing::ValuesIn(fewer_when_sanitized(kLayerBufferRows, 3)));

TEST(RootPromise, CorrectionsThatMoveAreOthers) {
  const LayerBufferRow stay{{}, kGlm}, move{{}, kGlm, DType::kBF16, 1, 0, 1, 0.01};
  EXPECT_NE(hash_with_room(*small_microbatches(stay), kManySteps),
            hash_with_room(*small_microbatches(move), kManySteps));
}

// With parts of their own, experts' gradients have other bits.
TEST(RootPromise, ExpertsByShardsAreOtherSums) {
  const LayerBufferRow whole{{}}, parts{{}, "{}", DType::kBF16, 1, 0, 8};
  EXPECT_NE(hash_with_room(*small_microbatches(whole), kManySteps),
            hash_with_room(*small_microbatches(parts), kManySteps));
}

// Everything on the devices, and room to keep none, some or all layers.
TEST(RootPromise, HoweverManyLayersAreKept) {
  for (const char* changes : {"{}", kShared}) {
    const LayerBufferRow row{{}, changes};
    const std::string resident = hash_with_room(*small_microbatches(row));
    for (const int devices : {1, 2}) {
      const std::unique_ptr<TinyRun> run = small_microbatches(row);
      RunConfig& config = run->config();
      config.train.devices = cpus(devices);
      config.plan.group_blocks = 1;  // whatever the budget
      const HfFolder folder = std::move(HfFolder::open(config.model.path).value());
      const SessionOptions options = session_options(config);
      const int64_t whole = Session::plan(folder.config(), options).take().whole_device_bytes;
      const int64_t all = most_kept_bytes(folder.config(), options);
      const int64_t layers = folder.config().num_layers;
      std::set<int64_t> kept;
      for (int64_t n = 0; n <= layers; ++n) {
        SCOPED_TRACE(testing::Message() << n << " of " << layers << ", devices " << devices);
        config.memory.device = MemorySize::of_bytes(whole + all * n / layers);
        kept.insert(layers_kept(config).first);
        config.train.steps = config.train.save_steps = kSteps;
        run->new_run();
        SimStorage storage(31);
        const Outcome outcome = run_to_end(config, &storage);
        ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
        EXPECT_EQ(outcome.sha256, resident);
      }
      EXPECT_EQ(*kept.begin(), 0);
      EXPECT_EQ(*kept.rbegin(), layers);
      EXPECT_GT(kept.size(), 2) << "never some";
    }
  }
}

}  // namespace
}  // namespace pagoda
