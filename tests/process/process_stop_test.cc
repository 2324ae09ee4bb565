// The built program stopped by signals, in every phase. A run that was stopped and resumed ends
// with the bytes and losses of one that was not.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "base/check.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/interrupted_run_test.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {
namespace {

using StopTest = InterruptedRunTest;

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
  for (int i = 0; i < 8; ++i) {
    const auto delay_us = static_cast<int64_t>(random() % static_cast<uint64_t>(run_us_));
    SCOPED_TRACE(testing::Message() << "seed 11, signal " << i << " after " << delay_us << " us");
    const std::string run_dir = strf("run-%d", i);
    flags["train.output_dir"] = dir_.file(run_dir);
    const auto process = start(train(flags));
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    process->send(SIGTERM);
    const ProcessResult stopped = process->wait();
    if (stopped.signal == SIGTERM) continue;  // before the handler stood: nothing was begun
    if (!std::filesystem::exists(dir_.file(run_dir))) {
      expect_refused(stopped, 128 + SIGTERM, {"while loading the model", "nothing was saved"});
      continue;
    }
    if (stopped.code != 0) expect_refused(stopped, 75, {"stopped by signal 15"});
    EXPECT_EQ(run(train(flags, {"--resume"})).code, 0);
    expect_reference(run_dir);
    EXPECT_EQ(evals(run_dir), evals("reference")) << "an evaluation was lost, or is there twice";
  }
}

// An evaluation that a signal prevented is made later, also that of the last step, and the log's
// words about it hold for the whole run.
TEST_F(StopTest, EvaluationsAreNotLost) {
  Flags flags = this->flags("run");
  flags["train.steps"] = "40";
  flags["train.save_steps"] = "1000";
  flags["train.eval_steps"] = "1";
  flags["data.eval_path"] = dir_.file("text.jsonl");
  flags["train.eval_batches"] = "2";
  make_reference(flags);
  const auto process = start(train(flags));
  ASSERT_TRUE(process->wait_for_err("step 3/")) << process->err();
  process->send(SIGTERM);
  expect_refused(process->wait(), 75, {"--resume"});
  EXPECT_EQ(checkpoints("run").size(), 2u) << "step 0, and that of the signal";
  const ProcessResult resumed = run(train(flags, {"--resume"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(evals("run"), evals("reference"));
  EXPECT_NE(resumed.err.find(strf("held-out loss: %.4f at step 0,", evals("run").at(0))),
            std::string::npos)
      << resumed.err;
  const ProcessResult again = run(train(flags, {"--resume"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.err.find("all 40 steps were done before"), std::string::npos) << again.err;
  EXPECT_EQ(again.err.find("nan"), std::string::npos) << again.err;
  EXPECT_EQ(evals("run"), evals("reference"));
}

// 75 promises a checkpoint to go on from.
TEST_F(StopTest, WithoutCheckpointsTheSignalIsTheCode) {
  Flags flags = this->flags("run");
  flags["train.steps"] = "1000000";
  flags["train.save_steps"] = "0";
  const auto process = start(train(flags));
  ASSERT_TRUE(process->wait_for_err("step 1/")) << process->err();
  process->send(SIGTERM);
  const ProcessResult stopped = process->wait();
  expect_refused(stopped, 128 + SIGTERM, {"stopped by signal 15", "nothing was saved"});
  EXPECT_EQ(stopped.signal, 0) << "it was killed";
}

TEST_F(StopTest, TheSecondSignalLeavesAtOnce) {
  Flags flags = this->flags("run");
  // One step is long enough that the second signal comes while the first one waits for it.
  flags["train.tokens_per_step"] = "32768";
  flags["train.steps"] = "50";
  flags["memory.device"] = "1GiB";
  flags["memory.host"] = "1GiB";
  const auto process = start(train(flags));
  ASSERT_TRUE(process->wait_for_err("step 1/")) << process->err();
  process->send(SIGINT);
  process->send(SIGTERM);  // at once, lest a step ended between the two and the run with it
  const ProcessResult left = process->wait();
  // The system may deliver the second first.
  EXPECT_TRUE(left.code == 128 + SIGTERM || left.code == 128 + SIGINT) << left.code << left.err;
  const ProcessResult verified = run({"ckpt", "verify", "--json", dir_.file("run")});
  EXPECT_EQ(verified.code, 0) << verified.err;
}

bool has_page_file(const std::string& scratch) {
  std::error_code gone;  // entries come and go while they are listed
  for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch, gone)) {
    if (entry.path().filename() == "pages.0") return true;
  }
  return false;
}

// An evaluation has nothing to save: it stops at the first signal and takes its scratch folder
// away.
TEST_F(StopTest, EvaluationsStopToo) {
  std::string text;
  for (int i = 0; i < 400000; ++i) text += "all work and no play ";
  put_file(dir_.file("long.txt"), text);
  std::filesystem::create_directory(dir_.file("scratch"));
  const auto process =
      start({"eval", "--model.path", dir_.file("model"), "--data.eval_path", dir_.file("long.txt"),
             "--data.sequence_len", "32", "--train.micro_batch_tokens", "64",
             "--train.eval_batches", "1000000", "--memory.disk", dir_.file("scratch")});
  // The model is loaded into its page file when the text is read.
  while (!has_page_file(dir_.file("scratch")) && !process->has_ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  // Another one beside it takes away what a killed one left, and nothing of the living.
  std::filesystem::create_directory(dir_.file("scratch/pagoda-scratch-1"));
  put_file(dir_.file("scratch/pagoda-scratch-1/REMOVE-ME"), "");
  put_file(dir_.file("scratch/pagoda-scratch-1/pages.0"), "left by a killed one");
  const ProcessResult other =
      run({"eval", "--model.path", dir_.file("model"), "--data.eval_path", dir_.file("text.jsonl"),
           "--data.sequence_len", "32", "--train.micro_batch_tokens", "64", "--memory.disk",
           dir_.file("scratch")});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_FALSE(std::filesystem::exists(dir_.file("scratch/pagoda-scratch-1")));
  EXPECT_FALSE(std::filesystem::is_empty(dir_.file("scratch")));
  process->send(SIGINT);
  expect_refused(process->wait(), 128 + SIGINT, {"stopped by signal 2 while evaluating"});
  EXPECT_TRUE(std::filesystem::is_empty(dir_.file("scratch")));
}

// A folder that is being written is taken away, so that the same command can be given again.
TEST_F(StopTest, WritingAModelStopsToo) {
  Json config = tiny_config();
  config["vocab_size"] = 1 << 20;
  config["hidden_size"] = 256;
  put_file(dir_.file("large.json"), config.dump());
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto process = start({"init", "--config", dir_.file("large.json"), "--out",
                                dir_.file("made/large")});
    while (!std::filesystem::exists(dir_.file("made/large")) && !process->has_ended()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    process->send(signal);
    expect_refused(process->wait(), 128 + signal, {strf("stopped by signal %d while", signal)});
    EXPECT_FALSE(std::filesystem::exists(dir_.file("made")));
  }
}

}  // namespace
}  // namespace pagoda
