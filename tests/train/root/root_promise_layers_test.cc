// The root promise where a step has so many microbatches that their in-layer buffers page too: a
// table of runs of several models and divisions of sums. And where devices keep what the backward
// reads of none, some or all layers (train/saved_layers.h).
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "tests/train/root/promise_row.h"

namespace pagoda {
namespace {

struct LayerBufferRow {
  PromiseRow row;
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

// The hash of the row's run with room for everything, which rows of one model and its sums share.
const std::string& resident_hash(const LayerBufferRow& row) {
  using Sums = std::tuple<std::string, DType, int64_t, int64_t, int64_t, double, double, double,
                          std::vector<std::string>>;
  static std::map<Sums, std::string> known;
  std::string& sha256 =
      known[Sums(row.changes, row.dtype, row.chunks, row.shards, row.expert_shards,
                 row.correction_speed, row.balance_loss, row.z_loss, row.freeze)];
  if (sha256.empty()) sha256 = hash_with_room(*small_microbatches(row));
  return sha256;
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
  const PromiseRow& row = GetParam().row;
  SCOPED_TRACE(testing::Message() << row.what << ", seed " << row.seed);
  const std::string& resident = resident_hash(GetParam());
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
  if (kUnderSanitizer) GTEST_SKIP() << "SKIPPED: short runs may have the same bits; release has it";
  const LayerBufferRow stay{{}, kGlm}, move{{}, kGlm, DType::kBF16, 1, 0, 1, 0.01};
  EXPECT_NE(resident_hash(stay), resident_hash(move));
}

// With parts of their own, experts' gradients have other bits: in fp32, since so few products of
// bf16 may have exact sums in any order.
TEST(RootPromise, ExpertsByShardsAreOtherSums) {
  if (kUnderSanitizer) GTEST_SKIP() << "SKIPPED: short runs may have the same bits; release has it";
  const LayerBufferRow whole{{}, "{}", DType::kF32}, parts{{}, "{}", DType::kF32, 1, 0, 8};
  EXPECT_NE(resident_hash(whole), resident_hash(parts));
}

// Everything on the devices, and room to keep none, some or all layers; also of a model that has
// experts by its configuration, but no layer with any.
TEST(RootPromise, HoweverManyLayersAreKept) {
  struct Model {
    const char* changes;
    std::vector<int> devices;
  };
  const Model models[] = {
      {"{}", {1, 2}}, {kShared, {2}}, {R"({"mlp_only_layers": [0, 1, 2]})", {1}}};
  for (const Model& model : fewer_when_sanitized(models, 3)) {
    const LayerBufferRow row{{}, model.changes};
    const std::string& resident = resident_hash(row);
    for (const int devices : model.devices) {
      const std::unique_ptr<TinyRun> run = small_microbatches(row);
      RunConfig& config = run->config();
      config.train.devices = cpus(devices);
      // Whatever the budget.
      config.plan.group_blocks = 1;
      config.plan.waves_in_flight = kLeastWaves;
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
