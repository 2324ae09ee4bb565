// Runs of several processes that mpirun starts on this machine end alike: stopped by a signal,
// since they learn no more, or by an error, which is said once.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/mpi_run_test.h"

namespace pagoda {
namespace {

using RanksTest = MpiRunTest;

// All processes are told, or one of them, between steps or in an evaluation: all save the same
// step, and the run goes on to the bytes of one that nobody stopped.
TEST_F(RanksTest, SignalsStopAllRanks) {
  Flags flags = flags_of("run", 1000000);
  flags["train.save_steps"] = "1000000";  // what is saved is saved because of the signal
  flags["data.eval_path"] = dir_.file("long.jsonl");
  flags["train.eval_batches"] = "1000000";
  std::string text;
  for (int i = 0; i < 40; ++i) text += get_file(dir_.file("text.jsonl"));
  put_file(dir_.file("long.jsonl"), text);
  struct Way {
    int to;  // rank; -1: mpirun, which tells all
    int signal;
    bool evaluates;
  };
  int64_t saved = 0;
  for (const Way& way : {Way{-1, SIGUSR1, false}, Way{1, SIGTERM, false}, Way{2, SIGINT, true}}) {
    SCOPED_TRACE(strf("signal %d of rank %d", way.signal, way.to));
    flags["train.eval_steps"] = way.evaluates ? std::to_string(saved) : "0";
    Process process(on(3, train(flags, saved > 0 ? Words{"--resume"} : Words())),
                    dir_.file("ranks"));
    ASSERT_TRUE(process.wait_for_err(saved > 0 ? "resuming from step " : "step 1/"));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (saved == 0) {  // another run in the same folder meanwhile
      const Words words = on(2, train(flags, {"--resume"}));
      expect_ended(Process(words, dir_.file("others")).wait(), 73, "in use");
    }
    if (way.to < 0) {
      process.send(way.signal);
    } else {
      ::kill(rank_processes(process.id()).at(static_cast<size_t>(way.to)), way.signal);
    }
    const ProcessResult stopped = process.wait();
    expect_ended(stopped, 75, strf("stopped by signal %d after step ", way.signal));
    const int64_t before = std::exchange(saved, checkpoints("run").rbegin()->first);
    EXPECT_EQ(saved > before, !way.evaluates);
    EXPECT_NE(stopped.err.find(strf("after step %lld, which is saved", (long long)saved)),
              std::string::npos)
        << stopped.err;
    EXPECT_TRUE(evals("run").empty()) << "the evaluation was over before the signal came";
  }
  flags["train.eval_steps"] = "0";
  flags["train.steps"] = std::to_string(saved + 3);
  EXPECT_EQ(mpirun(2, train(flags, {"--resume"})).code, 0);
  ASSERT_EQ(run(train(flags_of("alone", saved + 3))).code, 0);
  EXPECT_EQ(losses("run"), losses("alone"));
  EXPECT_TRUE(exported("run") == exported("alone"));
}

TEST_F(RanksTest, ARunThatLearnsNoMoreEndsEarly) {
  Flags flags = flags_of("run", 40);
  flags["train.eval_steps"] = "1";
  flags["train.early_stop"] = "3";
  flags["data.eval_path"] = dir_.file("text.jsonl");
  flags["optim.learning_rate"] = "1e-30";
  for (const Words& more : {Words(), Words{"--resume"}}) {
    const ProcessResult result = mpirun(2, train(flags, more));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.err.find("ended early: 3 evaluations"), std::string::npos) << result.err;
    EXPECT_EQ(losses("run").size(), 3u);
  }
}

TEST_F(RanksTest, ErrorsAreThoseOfAll) {
  const Flags taken = flags_of("taken", 2);
  ASSERT_EQ(mpirun(2, train(taken)).code, 0);
  expect_ended(mpirun(2, train(taken)), 73, dir_.file("taken"));
  const std::string out = dir_.file("out");
  expect_ended(mpirun(2, {"export", "--checkpoint", dir_.file("taken"), "--out", out}), 2,
               "export is the work of one process, and Open MPI started 2");
  EXPECT_FALSE(std::filesystem::exists(out));
  expect_ended(mpirun(2, {"ckpt", "verify", dir_.file("taken")}), 2, "ckpt is the work of one");
  expect_ended(mpirun(2, train(flags_of("absent", 2), {"--resume"})), 66, dir_.file("absent"));
  Flags ports = flags_of("ports", 2);  // one, of two processes on a machine
  ports["parallel.ports"] = "27300:27300";
  expect_ended(mpirun(2, train(ports)), 69, "name others (parallel.ports)");
  EXPECT_FALSE(std::filesystem::exists(dir_.file("ports")));
  Flags wrong = flags_of("wrong", 2);
  wrong["model.path"] = dir_.file("no-model");
  expect_ended(mpirun(2, train(wrong)), 66, "no-model");
  for (const auto& file : std::filesystem::directory_iterator(dir_.file("taken/store"))) {
    std::filesystem::remove(file.path());
    break;
  }
  expect_ended(mpirun(2, train(flags_of("taken", 4), {"--resume"})), 81, "put it back");
}

// The launcher would end them before a step and a save are over.
TEST_F(RanksTest, ALauncherThatKillsTooSoon) {
  ::setenv("OMPI_MCA_odls_base_sigkill_timeout", "90", 1);
  const ProcessResult first = mpirun(2, train(flags_of("run", 2)));
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string words = " s after SIGTERM or Ctrl-C, and the last step and save took 10";
  EXPECT_EQ(first.err.find(words), std::string::npos);
  std::string metrics = get_file(dir_.file("run/metrics.jsonl"));
  size_t at = metrics.rfind("\"type\":\"step\"");
  at = metrics.find("\"step_s\":", at) + 9;
  metrics.replace(at, metrics.find(',', at) - at, "100");  // the last step took that
  put_file(dir_.file("run/metrics.jsonl"), metrics);
  const ProcessResult again = mpirun(2, train(flags_of("run", 3), {"--resume"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.err.find("warning: Open MPI kills processes 90" + words), std::string::npos)
      << again.err;
  const ProcessResult alone = run(train(flags_of("run", 4), {"--resume"}));
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.err.find(words), std::string::npos) << "there is no launcher";
}

}  // namespace
}  // namespace pagoda
