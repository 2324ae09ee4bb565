// The built program interrupted: signals in every phase, and kill -9 at random instants. A run that
// was interrupted and resumed ends with the bytes and losses of one that was not.
#include <random>

#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

class StopTest : public RunTest {
 protected:
  // What an uninterrupted run of `flags` ends with.
  void make_reference(Flags reference) {
    reference["train.output_dir"] = dir_.file("reference");
    const auto begin = std::chrono::steady_clock::now();
    const ProcessResult result = run(train(reference));
    ASSERT_EQ(result.code, 0) << result.err;
    run_us_ = std::chrono::duration_cast<std::chrono::microseconds>(
                  std::chrono::steady_clock::now() - begin)
                  .count();
    expected_bytes_ = exported("reference");
    expected_losses_ = losses("reference");
    ASSERT_FALSE(expected_bytes_.empty());
  }
  void expect_reference(const std::string& run_dir) {
    EXPECT_TRUE(exported(run_dir) == expected_bytes_) << "other weights than an unbroken run";
    EXPECT_EQ(losses(run_dir), expected_losses_);
  }

  int64_t run_us_ = 0;  // time the reference took
  std::string expected_bytes_;
  std::map<int64_t, double> expected_losses_;
};

TEST_F(StopTest, SignalsSaveAndTheRunGoesOn) {
  Flags flags = this->flags("run");
  flags["train.steps"] = "60";
  flags["train.save_steps"] = "1000";  // what is saved is saved because of the signal
  make_reference(flags);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    SCOPED_TRACE(testing::Message() << "signal " << signal);
    const std::string run_dir = strf("run-%d", signal);
    flags["train.output_dir"] = dir_.file(run_dir);
    const auto process = start(train(flags));
    ASSERT_TRUE(process->wait_for_err("step 5/")) << process->err();
    process->send(signal);
    const ProcessResult stopped = process->wait();
    expect_refused(stopped, 75, {strf("stopped by signal %d", signal), "--resume"});
    EXPECT_EQ(run({"ckpt", "verify", dir_.file(run_dir)}).code, 0);
    const size_t before = losses(run_dir).size();
    EXPECT_GE(before, 5u);
    EXPECT_LT(before, 60u) << "the run ended before the signal came";
    const ProcessResult resumed = run(train(flags, {"--resume"}));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find(strf("resuming from step %zu", before)), std::string::npos)
        << resumed.err;
    expect_reference(run_dir);
  }
}

// A signal while the run is being set up or is evaluating ends it as well.
TEST_F(StopTest, SignalsAtAnyTime) {
  Flags flags = this->flags("run");
  flags["train.eval_steps"] = "2";
  flags["data.eval_path"] = dir_.file("text.jsonl");
  flags["train.eval_batches"] = "8";
  make_reference(flags);
  std::mt19937 random(11);
  for (int i = 0; i < 12; ++i) {
    const auto delay_us = static_cast<int64_t>(random() % static_cast<uint64_t>(run_us_));
    SCOPED_TRACE(testing::Message() << "seed 11, signal " << i << " after " << delay_us << " us");
    const std::string run_dir = strf("run-%d", i);
    flags["train.output_dir"] = dir_.file(run_dir);
    const auto process = start(train(flags));
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    process->send(SIGTERM);
    const ProcessResult stopped = process->wait();
    if (stopped.code == 128 + SIGTERM) continue;  // before the handler stood: nothing was begun
    if (stopped.code != 0) expect_refused(stopped, 75, {"stopped by signal 15"});
    EXPECT_EQ(run(train(flags, {"--resume"})).code, 0);
    expect_reference(run_dir);
  }
}

TEST_F(StopTest, TheSecondSignalLeavesAtOnce) {
  Flags flags = this->flags("run");
  // One step is long enough that the second signal comes while the first one waits for it.
  flags["train.tokens_per_step"] = "131072";
  flags["train.steps"] = "50";
  flags["memory.device"] = "1GiB";
  flags["memory.host"] = "1GiB";
  const auto process = start(train(flags));
  ASSERT_TRUE(process->wait_for_err("io: ")) << process->err();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  process->send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  process->send(SIGTERM);
  const ProcessResult left = process->wait();
  EXPECT_EQ(left.code, 128 + SIGTERM) << left.err;
  const ProcessResult verified = run({"ckpt", "verify", "--json", dir_.file("run")});
  EXPECT_EQ(verified.code, 0) << verified.err;
}

// Kills, resumes and kills again until the run gets through. The instants are spread over the time
// that a whole run takes, start and saves included.
TEST_F(StopTest, KilledAtRandomInstants) {
  constexpr int kKills = 48;
  constexpr uint32_t kSeed = 20240607;
  Flags flags = this->flags("run");
  flags["train.save_steps"] = "1";
  make_reference(flags);
  std::mt19937 random(kSeed);
  int kills = 0, early = 0, runs = 0;
  while (kills < kKills) {
    const std::string run_dir = strf("run-%d", ++runs);
    flags["train.output_dir"] = dir_.file(run_dir);
    bool resume = false;
    for (int code = -1; code != 0;) {
      const auto delay_us = static_cast<int64_t>(random() % static_cast<uint64_t>(run_us_));
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", run " << runs << ", kill "
                                      << kills + 1 << " after " << delay_us << " us");
      const auto process = start(train(flags, resume ? Words{"--resume"} : Words{}));
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      process->send(SIGKILL);
      const ProcessResult ended = process->wait();
      code = ended.code;
      if (code == 128 + SIGKILL) {
        ++kills;
        resume = std::filesystem::exists(dir_.file(run_dir));
      } else if (code == 81) {
        ++early;  // killed before its first checkpoint: it starts over
        std::filesystem::remove_all(dir_.file(run_dir));
        resume = false;
      } else {
        ASSERT_EQ(code, 0) << ended.err;
      }
    }
    expect_reference(run_dir);
  }
  std::printf("seed %u: %d kills in %d runs, %d of them before the first checkpoint\n", kSeed,
              kills, runs, early);
  EXPECT_GT(early, 0) << "no kill during checkpoint 0";
}

}  // namespace
}  // namespace pagoda
