// The root promise as a table: budgets, directories, storage kinds, completion orders, devices,
// page slots, pins, interruptions and every option of the plan, in combinations. A second table has
// so many experts that the plan keeps some of their pages in the host.
// (tests/train/root/root_promise_test.cc varies one thing at a time, and further.)
#include <gtest/gtest.h>

#include "tests/train/root/promise_row.h"

namespace pagoda {
namespace {

const PromiseRow kRows[] = {
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

class RootPromiseTable : public testing::TestWithParam<PromiseRow> {};

TEST_P(RootPromiseTable, EveryRunGivesOneHash) {
  const PromiseRow& row = GetParam();
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
  PromiseRow row;
};

const KeptRow kKeptRows[] = {
    {PageKind::kState,
     {.what = "some states", .more_host = 1000, .drive = Drive::kThreads, .resumed = true}},
    {PageKind::kState, {.what = "half the states", .more_host = 3500, .seed = 22}},
    {PageKind::kState,
     {.what = "states, two devices", .more_host = 3500, .seed = 23, .devices = "cpu*2"}},
    {PageKind::kGradient, {.what = "gradients", .more_host = 6000, .seed = 24}},
};

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
  const PromiseRow& row = GetParam().row;
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

}  // namespace
}  // namespace pagoda
