// The root promise: where bytes live never changes a bit of the result. One reference run with room
// for everything; every other run must end with the same SHA-256 over losses, weights and optimizer
// state. Runs that are meant to page assert that they did.
#include <gtest/gtest.h>

#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

// Sanitized builds look for races, not for rare orders.
constexpr uint64_t kCompletionOrders = kUnderSanitizer ? 4 : 8;

std::unique_ptr<Storage> real_storage(const TinyRun& run, IoKind kind = IoKind::kThreads) {
  auto storage = open_storage(kind, run.dir().path());
  return storage.ok() ? storage.take() : nullptr;
}

// One per process: the reference hash for each clipping mode.
std::string reference(ClipKind clip, DType dtype = DType::kBF16) {
  TinyRun run(dtype);
  run.config().optim.clip = clip;
  const auto storage = real_storage(run);
  const Outcome outcome = run_to_end(run.config(), storage.get());
  CHECK(outcome.status.ok(), "%s", outcome.status.message().c_str());
  return outcome.sha256;
}

const std::string& global_reference() {
  static const std::string hash = reference(ClipKind::kGlobal);
  return hash;
}

// With room for everything a page is brought up when it is first needed, and never moves again.
TEST(RootPromise, UnlimitedBudgetsMoveEachPageOnce) {
  TinyRun run;
  run.config().train.save_steps = 0;
  const auto storage = real_storage(run);
  auto started = Trainer::start(run.config(), false, storage.get());
  ASSERT_TRUE(started.ok()) << started.status().message();
  Session& session = (*started)->session();
  ASSERT_TRUE(session.memory().state_on_device);
  const int64_t loaded = session.pager().counters().write_backs;
  for (int i = 0; i < 6; ++i) ASSERT_TRUE((*started)->step().ok());
  const Pager::Counters& counters = session.pager().counters();
  const int64_t durable_pages = 2 * static_cast<int64_t>(session.table().records.size());
  EXPECT_LE(counters.uploads, durable_pages);
  EXPECT_EQ(counters.downloads, 0);
  EXPECT_LE(counters.write_backs - loaded, 4) << "only what loading left in the host's slots";
}

class MinimumBudget : public testing::TestWithParam<IoKind> {};

TEST_P(MinimumBudget, SameBits) {
  TinyRun run;
  run.use_minimum_budgets();
  const auto storage = real_storage(run, GetParam());
  if (!storage) GTEST_SKIP() << "SKIPPED: io_uring is not available here";
  const Outcome outcome = run_to_end(run.config(), storage.get());
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.sha256, global_reference());
  expect_paged(outcome.paging);
}

INSTANTIATE_TEST_SUITE_P(Io, MinimumBudget, testing::Values(IoKind::kThreads, IoKind::kUring));

TEST(RootPromise, ManyCompletionOrders) {
  for (uint64_t seed = 1; seed <= kCompletionOrders; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TinyRun run;
    run.use_minimum_budgets();
    SimStorage storage(seed);
    const Outcome outcome = run_to_end(run.config(), &storage);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.sha256, global_reference());
    expect_paged(outcome.paging);
  }
}

TEST(RootPromise, BudgetsInBetween) {
  TinyRun run;
  run.use_minimum_budgets();
  const int64_t device = run.config().device_bytes(), host = run.config().host_bytes();
  for (const auto& [more_device, more_host] :
       {std::pair{200 * kKiB, int64_t{0}}, {int64_t{0}, 300 * kKiB}, {400 * kKiB, 500 * kKiB}}) {
    run.new_run();
    run.config().memory.device = MemorySize::of_bytes(device + more_device);
    run.config().memory.host = MemorySize::of_bytes(host + more_host);
    SimStorage storage(99);
    const Outcome outcome = run_to_end(run.config(), &storage);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.sha256, global_reference());
  }
}

TEST(RootPromise, PinnedExperts) {
  TinyRun run;
  run.use_minimum_budgets();
  const int64_t device = run.config().device_bytes();
  for (const char* pin : {"25%", "100%"}) {
    run.new_run();
    run.config().memory.device = MemorySize::of_bytes(device + 100 * kKiB);
    run.config().memory.pin = pin;
    SimStorage storage(7);
    const Outcome outcome = run_to_end(run.config(), &storage);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.sha256, global_reference());
    expect_paged(outcome.paging);
  }
}

TEST(RootPromise, ThreadCounts) {
  for (int64_t threads : {1, 2, 3, 4}) {
    SCOPED_TRACE(testing::Message() << threads << " threads");
    TinyRun run;
    run.use_minimum_budgets();
    run.config().train.threads = threads;
    SimStorage storage(5);
    const Outcome outcome = run_to_end(run.config(), &storage);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.sha256, global_reference());
  }
}

TEST(RootPromise, SeveralHostDevices) {
  for (int64_t devices : {2, 3}) {
    for (bool minimum : {false, true}) {
      SCOPED_TRACE(testing::Message() << devices << " devices, minimum budgets: " << minimum);
      TinyRun run;
      run.config().train.devices = cpus(devices);
      if (minimum) run.use_minimum_budgets();
      SimStorage storage(6);
      const Outcome outcome = run_to_end(run.config(), &storage);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
      EXPECT_EQ(outcome.sha256, global_reference());
      if (minimum) expect_paged(outcome.paging);
    }
  }
}

// Where device 0 attends alone, a row travels to its expert's device and back, forward and
// backward, and nothing else does.
TEST(RootPromise, ExactlyTheRowsTravelBetweenDevices) {
  constexpr int64_t kDevices = 3, kWidth = 32, kValue = 2, kFloat = 4;  // of the tiny model in bf16
  TinyRun run;
  run.config().train.devices = cpus(kDevices);
  run.config().parallel.attention_devices = 1;
  run.config().parallel.place = PlaceKind::kHome;
  run.use_minimum_budgets();
  SimStorage storage(52);
  auto trainer = Trainer::start(run.config(), false, &storage);
  ASSERT_TRUE(trainer.ok()) << trainer.status().message();
  const Link& link = *(*trainer)->session().link();
  const Link::Counts before = link.counts();
  const StepResult step = (*trainer)->step().value();
  for (int device = 1; device < kDevices; ++device) {
    int64_t rows = 0;
    for (const auto& tokens : step.tokens_per_expert) {
      for (auto e = static_cast<size_t>(device); e < tokens.size(); e += kDevices)
        rows += tokens[e];
    }
    ASSERT_GT(rows, 0);
    const auto bytes = [&](int from, int to) {
      const auto then = before.find({from, to});
      return link.counts().at({from, to}).bytes - (then == before.end() ? 0 : then->second.bytes);
    };
    // There: inputs; then inputs, output gradients and routing weights. Back: outputs; then input
    // gradients and those of the routing weights.
    EXPECT_EQ(bytes(0, device), rows * (3 * kWidth * kValue + kFloat));
    EXPECT_EQ(bytes(device, 0), rows * (2 * kWidth * kValue + kFloat));
  }
}

// Two devices attend to a microbatch each. Rows travel from those that attend to those that have
// the experts; and the sum of a dense gradient goes to the record's home, once.
TEST(RootPromise, ExactlyRowsAndSumsTravelWhereAllAttend) {
  constexpr int64_t kWidth = 32, kValue = 2, kFloat = 4;
  constexpr int64_t kThere = 3 * kWidth * kValue + kFloat, kBack = 2 * kWidth * kValue + kFloat;
  TinyRun run;
  run.config().train.devices = cpus(2);
  run.config().parallel.place = PlaceKind::kHome;
  run.use_minimum_budgets();
  SimStorage storage(54);
  auto trainer = Trainer::start(run.config(), false, &storage);
  ASSERT_TRUE(trainer.ok()) << trainer.status().message();
  Session& session = (*trainer)->session();
  ASSERT_EQ(session.shape().shard_device, (std::vector<int>{0, 1}));
  ASSERT_EQ(session.shape().microbatches, 2);
  const StepResult step = (*trainer)->step().value();
  for (const int from : {0, 1}) {
    const int to = 1 - from;
    int64_t there = 0, back = 0, elements = 0;
    for (const auto& tokens : step.routing[static_cast<size_t>(from)]) {
      for (size_t e = 0; e < tokens.size(); ++e)
        there += e % 2 != static_cast<size_t>(from) ? tokens[e] : 0;
    }
    for (const auto& tokens : step.routing[static_cast<size_t>(to)]) {
      for (size_t e = 0; e < tokens.size(); ++e)
        back += e % 2 == static_cast<size_t>(from) ? tokens[e] : 0;
    }
    // Layers have their homes by turns; the embedding and the head are at home on device 0.
    for (const RecordSpec& record : session.table().records) {
      if (record.kind == RecordKind::kExpert) continue;
      const int64_t home = record.kind == RecordKind::kLayer ? record.layer % 2 : 0;
      elements += home == to ? record.num_elements : 0;
    }
    ASSERT_GT(there, 0);
    ASSERT_GT(back, 0);
    EXPECT_EQ(session.link()->counts().at({from, to}).bytes,
              there * kThere + back * kBack + elements * kFloat);
  }
}

// Transfers that are late, each by another time, change the order in which lanes of all devices go
// on.
TEST(RootPromise, DelayedLinks) {
  constexpr uint64_t kSeedsOfDelays = kUnderSanitizer ? 3 : 10;
  for (uint64_t seed = 1; seed <= kSeedsOfDelays; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TinyRun run;
    run.config().train.devices = cpus(2 + static_cast<int64_t>(seed % 2));
    run.config().plan.group_blocks = seed % 3 == 0 ? 4 : 0;
    run.config().plan.microbatch_major = seed % 5 == 0;
    run.config().train.save_steps = 0;
    run.use_minimum_budgets();
    SimStorage storage(seed);
    auto trainer = Trainer::start(run.config(), false, &storage);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    (*trainer)->session().slow_link({.latency_s = 1e-5, .jitter_s = 4e-4, .seed = seed});
    std::vector<double> losses;
    while ((*trainer)->steps_done() < run.config().train.steps) {
      auto step = (*trainer)->step();
      ASSERT_TRUE(step.ok()) << step.status().message();
      losses.push_back(step->loss);
    }
    EXPECT_GT((*trainer)->session().link()->counts().size(), 0u);
    EXPECT_EQ(outcome_hash(**trainer, losses), global_reference());
  }
}

TEST(RootPromise, ResumedOnOtherDevices) {
  TinyRun run;
  SimStorage storage(53);
  std::vector<double> losses;
  for (const int64_t devices : {1, 3, 2}) {
    run.config().train.devices = cpus(devices);
    run.config().memory.device = run.config().memory.host = MemorySize::of_bytes(64 * kMiB);
    run.use_minimum_budgets();
    auto trainer = Trainer::start(run.config(), devices != 1, &storage);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    for (int i = 0; i < 2; ++i) losses.push_back((*trainer)->step().value().loss);
    ASSERT_TRUE((*trainer)->save().ok());
    if (devices != 2) continue;
    EXPECT_EQ(outcome_hash(**trainer, losses), global_reference());
  }
}

TEST(RootPromise, ResumedAtEachStep) {
  for (int64_t stop = 0; stop < 6; ++stop) {
    SCOPED_TRACE(testing::Message() << "stopped after step " << stop);
    TinyRun run;
    run.use_minimum_budgets();
    SimStorage storage(static_cast<uint64_t>(40 + stop));
    const Outcome outcome = run_to_end(run.config(), &storage, stop);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.sha256, global_reference());
  }
}

// A run resumed with other budgets than it was started with.
TEST(RootPromise, ResumedWithOtherBudgets) {
  TinyRun run;
  SimStorage storage(17);
  {
    auto trainer = Trainer::start(run.config(), false, &storage);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE((*trainer)->step().ok());
    ASSERT_TRUE((*trainer)->save().ok());
  }
  const Outcome resumed = [&] {
    run.use_minimum_budgets();
    auto trainer = Trainer::start(run.config(), true, &storage);
    CHECK(trainer.ok(), "%s", trainer.status().message().c_str());
    Outcome outcome;
    const Paging before = Paging::so_far((*trainer)->session());
    while ((*trainer)->steps_done() < 6) {
      auto result = (*trainer)->step();
      CHECK(result.ok());
      outcome.losses.push_back(result->loss);
    }
    outcome.paging = Paging::so_far((*trainer)->session()) - before;
    outcome.sha256 = outcome_hash(**trainer, {});
    return outcome;
  }();
  expect_paged(resumed.paging);
  TinyRun straight;
  SimStorage other(18);
  auto trainer = Trainer::start(straight.config(), false, &other);
  ASSERT_TRUE(trainer.ok());
  for (int i = 0; i < 6; ++i) ASSERT_TRUE((*trainer)->step().ok());
  EXPECT_EQ(resumed.sha256, outcome_hash(**trainer, {}));
}

class EagerClipping : public testing::TestWithParam<ClipKind> {};

TEST_P(EagerClipping, SameBitsPagedAndResumed) {
  const std::string expected = reference(GetParam());
  EXPECT_NE(expected, global_reference());
  for (int64_t stop : {-1, 2}) {
    TinyRun run;
    run.config().optim.clip = GetParam();
    run.use_minimum_budgets();
    SimStorage storage(8);
    const Outcome outcome = run_to_end(run.config(), &storage, stop);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.sha256, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, EagerClipping,
                         testing::Values(ClipKind::kPerExpert, ClipKind::kNone));

// Rounding of the moments is stochastic, but drawn per record and update: it does not matter when.
class Formats : public testing::TestWithParam<StateFormat> {};

TEST_P(Formats, SameBitsPagedAndResumed) {
  std::string expected;
  for (int64_t stop : {-1, 2}) {
    for (bool minimum : {false, true}) {
      TinyRun run;
      run.config().optim.state = GetParam();
      if (minimum) run.use_minimum_budgets();
      SimStorage storage(9);
      const Outcome outcome = run_to_end(run.config(), &storage, stop);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
      if (expected.empty()) expected = outcome.sha256;
      EXPECT_EQ(outcome.sha256, expected);
      if (minimum) expect_paged(outcome.paging);
    }
  }
  EXPECT_NE(expected, global_reference());
}

INSTANTIATE_TEST_SUITE_P(Fewer, Formats, testing::Values(StateFormat::kBf16, StateFormat::k8Bit));

// The order of a step is a matter of time alone. Budgets are the smallest, so whole layers fit, and
// nothing else. Cases have every pair of an order, a clipping and a number of devices.
TEST(RootPromise, PlanOptions) {
  struct Case {
    const char* what;
    PlanOptions plan;
  };
  constexpr Case cases[] = {{"no prefetch", {.prefetch = false}},
                            {"optimizer at the end", {.optimizer_at_end = true}},
                            {"whole layers", {.whole_layers = true}},
                            {"microbatch-major", {.microbatch_major = true}},
                            {"padded experts", {.padded_experts = true}},
                            {"all of them", {false, true, true, true, true}}};
  for (ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    const std::string expected = clip == ClipKind::kGlobal ? global_reference() : reference(clip);
    int64_t number = clip == ClipKind::kGlobal ? 0 : 1;
    for (const Case& c : fewer_when_sanitized(cases, 3)) {
      const int64_t devices = 1 + number++ % 2;
      SCOPED_TRACE(testing::Message() << c.what << ", " << devices << " devices");
      TinyRun run;
      run.config().optim.clip = clip;
      run.config().plan = c.plan;
      run.config().train.devices = cpus(devices);
      run.use_minimum_budgets();
      SimStorage storage(77);
      const Outcome outcome = run_to_end(run.config(), &storage, devices == 1 ? 3 : -1);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
      EXPECT_EQ(outcome.sha256, expected);
      expect_paged(outcome.paging);
    }
  }
}

// Few experts with several row blocks each.
constexpr const char* kFewExperts = R"({"num_experts": 6, "mlp_only_layers": []})";

// The hash is the same for any number of row blocks that are computed together, of one or several
// experts and microbatches, with pages that move or layers that are saved.
TEST(RootPromise, GroupsOfRowBlocks) {
  const auto outcome = [&](int64_t group_blocks, bool minimum, int64_t devices, bool padded) {
    SCOPED_TRACE(testing::Message() << "groups of " << group_blocks << " on " << devices);
    TinyRun run(DType::kBF16, tiny_with(kFewExperts).c_str());
    run.config().train.steps = run.config().train.save_steps = 2;
    run.config().train.tokens_per_step = 1024;
    run.config().train.micro_batch_tokens = 512;
    run.config().train.devices = cpus(devices);
    run.config().plan.group_blocks = group_blocks;
    run.config().plan.padded_experts = padded;
    if (minimum) run.use_minimum_budgets();
    SimStorage storage(81);
    Outcome result = run_to_end(run.config(), &storage);
    CHECK(result.status.ok(), "%s", result.status.message().c_str());
    if (minimum) expect_paged(result.paging);
    return result.sha256;
  };
  const std::string expected = outcome(1, true, 1, false);
  EXPECT_EQ(outcome(2, true, 1, false), expected);
  EXPECT_EQ(outcome(16, true, 1, false), expected);
  EXPECT_EQ(outcome(16, false, 1, false), expected) << "with kept layers";
  EXPECT_EQ(outcome(4, true, 2, false), expected);
  EXPECT_EQ(outcome(16, true, 1, true), expected) << "padded";
}

// A store is the same whatever is computed together.
TEST(RootPromise, ResumedWithOtherGroups) {
  TinyRun run;
  SimStorage storage(82);
  std::vector<double> losses;
  for (const int64_t group_blocks : {0, 8}) {
    run.config().plan.group_blocks = group_blocks;
    run.config().memory.device = run.config().memory.host = MemorySize::of_bytes(64 * kMiB);
    run.use_minimum_budgets();
    auto trainer = Trainer::start(run.config(), group_blocks > 0, &storage);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    for (int i = 0; i < 3; ++i) losses.push_back((*trainer)->step().value().loss);
    ASSERT_TRUE((*trainer)->save().ok());
    if (group_blocks == 0) continue;
    EXPECT_EQ(outcome_hash(**trainer, losses), global_reference());
  }
}

// Sums may change between steps: the run goes on, with other bits from there on, which are the same
// ones however it pages.
TEST(RootPromise, ResumedWithOtherShards) {
  const auto hash_of = [](int64_t later_shards, bool smallest, bool experts_too) {
    TinyRun run(DType::kF32);  // gradients in bf16 would seldom show the order of their sums
    run.config().train.micro_batch_tokens = 32;  // four a step
    SimStorage storage(83);
    std::vector<double> losses;
    std::string hash;
    for (const int64_t shards : {int64_t{0}, later_shards}) {  // auto: four
      const bool resumed = shards > 0;
      run.config().train.shards = shards;
      if (experts_too) run.config().train.expert_shards = resumed ? shards : 4;
      if (smallest) run.use_minimum_budgets();
      auto trainer = Trainer::start(run.config(), resumed, &storage);
      CHECK(trainer.ok(), "%s", trainer.status().message().c_str());
      for (int i = 0; i < 3; ++i) losses.push_back((*trainer)->step().value().loss);
      CHECK((*trainer)->save().ok());
      EXPECT_EQ((*trainer)->config().sums().shards, resumed ? later_shards : 4);
      if (resumed) hash = outcome_hash(**trainer, losses);
    }
    return hash;
  };
  const std::string other = hash_of(1, false, false);
  EXPECT_EQ(hash_of(1, true, false), other);
  EXPECT_NE(hash_of(4, true, false), other);
  const std::string with_experts = hash_of(2, false, true);
  EXPECT_EQ(hash_of(2, true, true), with_experts);
  EXPECT_NE(hash_of(2, true, false), with_experts);
}

// Whether experts are summed by shards is the run's: a forgotten option is said, and changes no
// bit.
TEST(RootPromise, ExpertShardsStayThoseOfTheRun) {
  TinyRun run;
  run.config().train.expert_shards = run.config().sums().shards;
  SimStorage storage(84);
  {
    auto trainer = Trainer::start(run.config(), false, &storage);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    ASSERT_TRUE((*trainer)->step().ok());
    ASSERT_TRUE((*trainer)->save().ok());
  }
  run.config().train.expert_shards = 1;
  const auto resumed = Trainer::start(run.config(), true, &storage);
  ASSERT_EQ(resumed.status().code(), Exit::kMismatch);
  EXPECT_NE(resumed.status().message().find("train.expert_shards is 1, was"), std::string::npos)
      << resumed.status().message();
}

TEST(RootPromise, Fp32AndSkippedExperts) {
  auto hash = [](bool minimum) {
    TinyRun run(DType::kF32);
    run.config().optim.untouched = UntouchedKind::kSkip;
    if (minimum) run.use_minimum_budgets();
    SimStorage storage(21);
    const Outcome outcome = run_to_end(run.config(), &storage, minimum ? 3 : -1);
    CHECK(outcome.status.ok(), "%s", outcome.status.message().c_str());
    return outcome.sha256;
  };
  EXPECT_EQ(hash(true), hash(false));
}

// Shared experts, biases, a family without norms on queries and keys.
TEST(RootPromise, AnotherFamily) {
  constexpr const char* kConfig = R"({
    "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 272,
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
    "num_experts": 24, "num_experts_per_tok": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": true, "router_aux_loss_coef": 0.01,
    "initializer_range": 0.1, "max_position_embeddings": 256, "mlp_only_layers": [1],
    "decoder_sparse_step": 1})";
  const auto outcome = [&](bool minimum, int64_t devices, int64_t stop) {
    TinyRun run(DType::kBF16, kConfig);
    run.config().train.devices = cpus(devices);
    if (minimum) run.use_minimum_budgets();
    SimStorage storage(31);
    Outcome result = run_to_end(run.config(), &storage, stop);
    CHECK(result.status.ok(), "%s", result.status.message().c_str());
    return result;
  };
  const std::string expected = outcome(false, 1, -1).sha256;
  const Outcome paged = outcome(true, 1, -1);
  EXPECT_EQ(paged.sha256, expected);
  expect_paged(paged.paging);
  EXPECT_EQ(outcome(true, 1, 3).sha256, expected);
  EXPECT_EQ(outcome(true, 2, -1).sha256, expected);
}

// Some experts must go without tokens in some step, or the lazy path is not tested.
TEST(RootPromise, SomeExpertsAreUntouched) {
  TinyRun run;
  SimStorage storage(3);
  auto trainer = Trainer::start(run.config(), false, &storage);
  ASSERT_TRUE(trainer.ok());
  int64_t untouched = 0;
  for (int i = 0; i < 6; ++i) {
    auto result = (*trainer)->step();
    ASSERT_TRUE(result.ok());
    for (const auto& layer : result->tokens_per_expert) {
      for (int64_t tokens : layer) untouched += tokens == 0;
    }
  }
  EXPECT_GT(untouched, 0);
}

}  // namespace
}  // namespace pagoda
