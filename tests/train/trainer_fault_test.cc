// Whole training runs on a storage that fails. A run either ends with the bits of the clean run,
// or with an error that says so; then the machine starts again, and the run goes on from what was
// reported as saved (or from the beginning when nothing was) to the same bits. No fault makes a run
// hang, and none makes it believe in a checkpoint that is not there.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

using Kind = SimFault::Kind;

// Only one in so many of the calls that plans name is tried, and all of them with --unthinned. Of
// transfers plans name one in four at most.
int64_t thinning = kUnderThreadSanitizer ? 20 : kUnderAddressSanitizer ? 30 : 4;

// One layer with experts and one without: few calls, so that each can be made to fail.
constexpr const char* kSmallConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 272,
  "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
  "head_dim": 8, "intermediate_size": 24, "moe_intermediate_size": 16, "num_experts": 5,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
  "initializer_range": 0.1, "max_position_embeddings": 256, "mlp_only_layers": [0],
  "decoder_sparse_step": 1, "attention_bias": false})";

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kError: return "error";
    case Kind::kTransient: return "transient";
    case Kind::kShort: return "short";
    case Kind::kZero: return "zero bytes";
    case Kind::kBitFlip: return "bit flip";
    case Kind::kStale: return "stale";
    case Kind::kMisdirected: return "misdirected";
    case Kind::kDelay: return "delay";
    case Kind::kCrash: return "power loss";
  }
  return "?";
}

// What one program did, from its start to its end or its error.
struct Life {
  Status status;
  int64_t saved = -1;              // newest step reported as saved
  std::map<int64_t, double> loss;  // by step
  std::string sha256;              // of weights and state at the end
};

Life live(const RunConfig& config, bool resume, SimStorage* storage, int64_t end) {
  Life life;
  auto started = Trainer::start(config, resume, storage);
  if (!started.ok()) return life.status = started.status(), life;
  Trainer& trainer = **started;
  life.saved = trainer.saved_step();
  while (trainer.steps_done() < end) {
    auto result = trainer.step();
    if (!result.ok()) return life.status = result.status(), life;
    life.loss[trainer.steps_done()] = result->loss;
    if (trainer.steps_done() % config.train.save_steps != 0) continue;
    life.status = trainer.save();
    if (!life.status.ok()) return life;
    life.saved = trainer.saved_step();
  }
  // Looking at the outcome is not part of the run, but damage it finds is damage.
  storage->clear_faults();
  if (storage->crashed()) return life;
  life.sha256 = outcome_hash(trainer, {});
  life.status = trainer.session().pager().status();
  if (!life.status.ok()) life.sha256 = "";
  return life;
}

// The run under test: four steps, saved after two and after four, with the smallest budgets.
class FaultyRun {
 public:
  explicit FaultyRun(const char* model_config, ClipKind clip = ClipKind::kGlobal, int devices = 1)
      : run_(DType::kBF16, model_config) {
    run_.config().optim.clip = clip;
    run_.config().train.devices = cpus(devices);
    run_.config().train.steps = 4;
    run_.config().train.save_steps = 2;
    run_.config().train.tokens_per_step = 64;
    run_.config().train.micro_batch_tokens = 32;
    run_.config().train.threads = 1;
    run_.use_minimum_budgets();
    SimStorage storage(1, 0);
    clean_ = live(run_.config(), false, &storage, 4);
    CHECK(clean_.status.ok(), "%s", clean_.status.message().c_str());
    CHECK(clean_.loss.size() == 4 && clean_.saved == 4);
  }

  // Calls of a whole run, or of the part that resumes after two steps.
  int64_t calls(bool resumed) {
    SimStorage storage(1, 0);
    if (resumed) first_half(&storage);
    const int64_t before = storage.calls();
    const Life life = live(run_.config(), resumed, &storage, 4);
    CHECK(life.sha256 == clean_.sha256);
    return storage.calls() - before;
  }

  // One trial: a life with the fault, in a run from its start or one that resumes, and the life
  // after it. `honest`: the storage did not pretend to have done what it had not, so that nothing
  // that was reported as saved may be lost.
  void trial(const SimFault& fault, bool resumed, bool honest) {
    const std::string what = strf("%s at call %lld of kinds %x, %s run", name_of(fault.kind),
                                  (long long)fault.nth, fault.calls, resumed ? "resumed" : "fresh");
    const Watchdog watchdog(what, std::chrono::seconds(120));
    SCOPED_TRACE(what);
    SimStorage storage(static_cast<uint64_t>(fault.nth), 0);
    if (resumed) first_half(&storage);
    storage.inject(fault);
    const Life first = live(run_.config(), resumed, &storage, 4);
    struck_ += storage.faults() > 0;
    failed_ += !first.status.ok();
    expect_right_or_error(first);
    storage.clear_faults();
    // Half of the machines lose power, so that what was not flushed is gone; the other half only
    // lose the process.
    if (fault.nth % 2 == 0 && !storage.crashed()) storage.crash(static_cast<uint64_t>(fault.nth));
    storage.restart();
    go_on(&storage, std::max(first.saved, resumed ? int64_t{2} : int64_t{-1}), honest);
  }

  // Lives one after another on a storage where anything that is honest may happen at any call,
  // until one reaches the end. Returns how many it took.
  int lives_until_done(uint64_t seed) {
    const std::string what = strf("lives of seed %llu", (unsigned long long)seed);
    const Watchdog watchdog(what, std::chrono::seconds(120));
    SCOPED_TRACE(what);
    SimStorage storage(seed, 0);
    int64_t saved = -1;
    for (int lives = 1; lives <= 60; ++lives) {
      for (const Kind kind : {Kind::kError, Kind::kCrash, Kind::kShort, Kind::kTransient}) {
        SimFault fault;
        fault.kind = kind;
        fault.probability = 0.003;
        fault.error = kind == Kind::kTransient ? EINTR : EIO;
        fault.crash_seed = seed * 1000 + static_cast<uint64_t>(lives);
        storage.inject(fault);
      }
      const Life life = live(run_.config(), saved >= 0, &storage, 4);
      expect_right_or_error(life);
      EXPECT_NE(life.status.code(), Exit::kNoCheckpoint) << "saved step " << saved;
      if (testing::Test::HasFailure()) return lives;
      if (life.sha256 == clean_.sha256) return lives;
      saved = std::max(saved, life.saved);
      storage.clear_faults();
      if (lives % 2 == 0 && !storage.crashed()) storage.crash(seed);
      storage.restart();
    }
    ADD_FAILURE() << "60 lives were not enough";
    return 60;
  }

  int64_t struck() const { return struck_; }
  int64_t failed() const { return failed_; }

 private:
  void first_half(SimStorage* storage) {
    const Life life = live(run_.config(), false, storage, 2);
    CHECK(life.status.ok() && life.saved == 2, "%s", life.status.message().c_str());
    storage->restart();
  }

  // The life after the fault, on a machine that works again.
  void go_on(SimStorage* storage, int64_t saved, bool honest) {
    const CheckpointDirectory directory(storage, run_.config().train.output_dir + "/checkpoints");
    const auto newest = directory.newest();
    if (honest && saved >= 0) {
      ASSERT_TRUE(newest.ok()) << "step " << saved << " was reported as saved: "
                               << newest.status().message();
      EXPECT_GE(newest.value().checkpoint.step, saved) << "an older checkpoint came back";
    }
    Life life;
    if (newest.ok() || saved >= 0) life = live(run_.config(), true, storage, 4);
    if (saved < 0 && life.sha256.empty()) life = live(run_.config(), false, storage, 4);
    expect_right_or_error(life);
    if (!honest) return;
    EXPECT_EQ(life.sha256, clean_.sha256) << life.status.message();
  }

  void expect_right_or_error(const Life& life) {
    for (const auto& [step, loss] : life.loss) {
      EXPECT_EQ(loss, clean_.loss.at(step)) << "loss of step " << step;
    }
    if (life.status.ok() && !life.sha256.empty()) {
      EXPECT_EQ(life.sha256, clean_.sha256);
      return;
    }
    if (life.status.ok()) return;  // the power went after the last call of the run
    const Exit code = life.status.code();
    EXPECT_TRUE(code == Exit::kIoError || code == Exit::kCannotCreate ||
                code == Exit::kNoCheckpoint || code == Exit::kMismatch)
        << static_cast<int>(code) << ": " << life.status.message();
    EXPECT_FALSE(life.status.message().empty());
    EXPECT_EQ(life.status.message().find('\n'), std::string::npos) << life.status.message();
  }

  TinyRun run_;
  Life clean_;
  int64_t struck_ = 0, failed_ = 0;
};

struct Plan {
  Kind kind;
  uint32_t calls = kSimAll;
  int64_t stride = 1;  // every call of these kinds, or one in so many
  bool honest = true;
};

void run_plan(FaultyRun& run, const Plan& plan, bool resumed) {
  const int64_t calls = run.calls(resumed);
  const int64_t struck_before = run.struck(), failed_before = run.failed();
  const int64_t stride = plan.stride * thinning;
  // Some kinds have no more than four calls.
  const int64_t first = 1 + static_cast<int64_t>(plan.kind) % std::min<int64_t>(stride, 4);
  int64_t runs = 0;
  for (int64_t nth = first; nth <= calls; nth += stride) {
    SimFault fault;
    fault.kind = plan.kind;
    fault.calls = plan.calls;
    fault.nth = nth;
    fault.error = plan.kind == Kind::kTransient ? EAGAIN : EIO;
    fault.crash_seed = static_cast<uint64_t>(nth) * 7919;
    const int64_t struck = run.struck();
    run.trial(fault, resumed, plan.honest);
    ++runs;
    if (testing::Test::HasFailure()) return;
    if (run.struck() == struck) break;  // no such call: there are fewer of this kind
  }
  std::printf("%s on calls %x, %s: %lld calls, %lld runs, %lld struck, %lld ended in an error\n",
              name_of(plan.kind), plan.calls, resumed ? "resumed" : "fresh", (long long)calls,
              (long long)runs, (long long)(run.struck() - struck_before),
              (long long)(run.failed() - failed_before));
  EXPECT_GT(run.struck(), struck_before) << "no fault struck";
}

// Most calls are transfers, and those of a step or of a save are alike: one in four of them fails.
void run_calls(FaultyRun& run, Kind kind, int64_t stride, bool resumed) {
  run_plan(run, {kind, kSimAll & ~kSimTransfers, stride}, resumed);
  run_plan(run, {kind, kSimTransfers, 4 * stride}, resumed);
}

TEST(TrainerFaults, CallsFail) {
  FaultyRun run(kSmallConfig);
  run_calls(run, Kind::kError, 1, false);
  run_calls(run, Kind::kError, 3, true);
}

TEST(TrainerFaults, PowerIsLostAtCalls) {
  FaultyRun run(kSmallConfig);
  run_calls(run, Kind::kCrash, 1, false);
  run_calls(run, Kind::kCrash, 3, true);
}

// Only transfers and small files have a part that could be left out.
TEST(TrainerFaults, CallsAreCutShort) {
  FaultyRun run(kSmallConfig);
  run_plan(run, {Kind::kShort, kSimWriteFile}, false);
  run_plan(run, {Kind::kShort, kSimTransfers, 4}, false);
}

TEST(TrainerFaults, TransfersAreInterruptedOrEmpty) {
  FaultyRun run(kSmallConfig);
  run_plan(run, {Kind::kTransient, kSimTransfers, 10}, false);
  run_plan(run, {Kind::kZero, kSimTransfers, 10}, false);
}

// Wrong bytes from a disk that holds the right ones: the run stops, what was saved is good.
TEST(TrainerFaults, ReadsGiveWrongBytes) {
  FaultyRun run(kSmallConfig);
  for (const Kind kind : {Kind::kBitFlip, Kind::kMisdirected}) {
    run_plan(run, {kind, kSimRead, 5}, false);
    run_plan(run, {kind, kSimRead, 4}, true);
  }
  run_plan(run, {Kind::kBitFlip, kSimReadFile}, false);
  run_plan(run, {Kind::kStale, kSimRead, 6}, false);
}

// A disk that lies about what it wrote or flushed may cost the checkpoint, but never passes off
// other bits as it.
TEST(TrainerFaults, WritesAreLostDamagedOrElsewhere) {
  FaultyRun run(kSmallConfig);
  for (const Kind kind : {Kind::kBitFlip, Kind::kStale, Kind::kMisdirected}) {
    run_plan(run, {kind, kSimWrite, 6, false}, false);
  }
  run_plan(run, {Kind::kStale, kSimSync | kSimSyncDirectory, 1, false}, false);
}

// Updates inside the backward: garbage that a failed read leaves must not look like divergence.
TEST(TrainerFaults, EagerUpdates) {
  FaultyRun run(kSmallConfig, ClipKind::kNone);
  run_plan(run, {Kind::kError, kSimAll, 11}, false);
  run_plan(run, {Kind::kCrash, kSimAll, 13}, false);
}

// The model of the other whole-run tests, on one device and on two.
TEST(TrainerFaults, ALargerRun) {
  for (const int devices : {1, 2}) {
    FaultyRun run(kTinyConfig, ClipKind::kGlobal, devices);
    run_plan(run, {Kind::kError, kSimAll, 151}, false);
    run_plan(run, {Kind::kCrash, kSimAll, 173}, false);
    run_plan(run, {Kind::kBitFlip, kSimRead, 97}, false);
  }
}

// Work that is queued reads the step's batch. A step that fails early must not take the batch away.
TEST(TrainerFaults, AFailedStepReturnsOnlyWhenItsWorkIsOver) {
  const Watchdog watchdog("a failed step", std::chrono::seconds(120));
  TinyRun run(DType::kBF16, kSmallConfig);
  run.use_minimum_budgets();
  SimStorage storage(1, 0);
  auto started = Trainer::start(run.config(), false, &storage);
  ASSERT_TRUE(started.ok()) << started.status().message();
  Trainer& trainer = **started;
  ASSERT_TRUE(trainer.step().ok());
  storage.inject({.kind = Kind::kError, .calls = kSimTransfers, .probability = 1.0});
  ASSERT_FALSE(trainer.save().ok());
  storage.clear_faults();
  // From here on every step fails at its first look at the status, however slow its own work is.
  std::atomic<bool> opened{false};
  Event gate = Event::make();
  trainer.session().executor().stream(0).wait(gate);
  std::thread opener([&opened, gate]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    opened = true;
    gate.signal();
  });
  const auto result = trainer.step();
  EXPECT_TRUE(opened) << "step() returned while work on its batch was queued";
  opener.join();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Exit::kIoError);
}

TEST(TrainerFaults, LifeAfterLifeUntilItIsDone) {
  FaultyRun run(kSmallConfig);
  const int64_t stride = std::min<int64_t>(thinning, 5);  // of few seeds, most may live on by luck
  int lives = 0, seeds = 0;
  for (int64_t seed = 1; seed <= 40; seed += stride, ++seeds) {
    lives += run.lives_until_done(static_cast<uint64_t>(seed));
    if (HasFailure()) return;
  }
  std::printf("%d seeds, %d lives\n", seeds, lives);
  EXPECT_GT(lives, 2 * seeds) << "the faults must end most lives";
}

}  // namespace

void try_all_planned_calls() { thinning = 1; }

}  // namespace pagoda

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::strcmp(argv[1], "--unthinned") == 0) pagoda::try_all_planned_calls();
  return RUN_ALL_TESTS();
}
