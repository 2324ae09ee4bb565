// Ranks that are lost: killed, standing still, cut off or alive and no further, while they start,
// step, save and commit. The others end soon and say so, nothing is left behind, and the run goes
// on to the bytes of an unbroken one. tools/attack has more of them.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "base/check.h"
#include "tests/testing/ranks/frozen_thread.h"
#include "tests/testing/ranks/mpi_run_test.h"
#include "tests/testing/ranks/own_network.h"

namespace pagoda {
namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

// What a rank is lost by.
enum class Loss : uint8_t { kKilled, kStopped, kCutOff, kFrozen };

// When: `delay_ms` after step 20 is saved, or after a file is there, behind that step if
// `is_later`. A file that is there for too short a time to be seen is waited for again, at the next
// save. A step takes some 7 ms.
struct Moment {
  const char* during;
  const char* file;  // "": none; "*": a checkpoint that is being written
  double delay_ms;
  bool is_later = true;
};
constexpr Moment kMoments[] = {
    {"the start", "STARTING", 0, false},
    {"the first checkpoint", "*", 1, false},
    {"an exchange", "", 2.5},
    {"a backward", "", 5},
    {"a save", "*", 0},
    {"a commit", "*/MANIFEST", 0.3},
};
constexpr Moment kStart = kMoments[0], kExchange = kMoments[2], kSave = kMoments[4],
                 kCommit = kMoments[5];
std::vector<Moment> every_other(size_t first) {
  std::vector<Moment> moments;
  for (size_t i = first; i < std::size(kMoments); i += 2) moments.push_back(kMoments[i]);
  return moments;
}
constexpr int kRanks = 3;
constexpr int64_t kSteps = 60, kSaveSteps = 20;

class LostRanksTest : public MpiRunTest {
 protected:
  explicit LostRanksTest(Words more = {}) : more_(std::move(more)) {}
  void SetUp() override {
    MpiRunTest::SetUp();
    if (IsSkipped()) return;
    // mpirun leaves the others the second that it gives by default, to say why they end. It waits
    // for twice that, also where all have ended.
    ::unsetenv("OMPI_MCA_odls_base_sigkill_timeout");
    ASSERT_NE(weights_of_one(kSteps), "");
  }
  // Each of the moments, each time another rank.
  void lose(Loss loss, const std::vector<Moment>& moments = {kMoments, std::end(kMoments)}) {
    if (loss == Loss::kFrozen && !FrozenThread::is_allowed()) {
      GTEST_SKIP() << "SKIPPED: no process may trace another";
    }
    int lost = static_cast<int>(loss);
    for (const Moment& moment : moments) {
      lost = (lost + 1) % kRanks;
      SCOPED_TRACE(testing::Message() << "rank " << lost << " during " << moment.during);
      lose(loss, static_cast<size_t>(lost), moment);
      if (HasFatalFailure() || IsSkipped()) return;
    }
    EXPECT_GT(waited_for_, 0) << said_;
  }

  // Rank 0 stands still for longer than the deadline, at its start and in a save, which are its own
  // work, and goes on.
  void delay_rank_0() {
    if (!FrozenThread::is_allowed()) GTEST_SKIP() << "SKIPPED: no process may trace another";
    const std::string folder = "slow";
    Flags flags = flags_of(folder, kSteps);
    flags["train.save_steps"] = "2";
    flags["parallel.deadline_s"] = "1.5";
    flags["parallel.heartbeat_s"] = "0.5";
    Process process(on(kRanks, train(flags)), dir_.file("ranks"));
    ASSERT_TRUE(comes(process, folder, kStart)) << process.err();
    const int rank_0 = rank_processes(process.id()).at(0);
    for (const Moment& moment : {kStart, kSave}) {
      // Until it stands within the work: the file stays, since nobody else removes it.
      for (bool stands = false; !stands;) {
        ASSERT_TRUE(comes(process, folder, moment)) << process.err();
        FrozenThread frozen(rank_0);
        ASSERT_TRUE(frozen.ok()) << process.err();
        stands = is_there(folder, moment.file);
        if (stands) std::this_thread::sleep_for(Milliseconds(2300));
      }
    }
    const ProcessResult ended = process.wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_TRUE(exported(folder) == weights_of_one(kSteps));
  }

 private:
  // What a run of one process exports after so many steps. Empty if it fails.
  const std::string& weights_of_one(int64_t steps) {
    const auto [known, is_new] = weights_of_one_.try_emplace(steps);
    if (!is_new) return known->second;
    const std::string folder = strf("alone-%lld", static_cast<long long>(steps));
    const ProcessResult alone = run(train(flags_of(folder, steps), more_));
    EXPECT_EQ(alone.code, 0) << alone.err;
    if (alone.code == 0) known->second = exported(folder);
    return known->second;
  }
  void lose(Loss loss, size_t lost, const Moment& moment) {
    std::optional<OwnNetwork> network;
    if (loss == Loss::kCutOff) network.emplace();
    if (network && !network->ok()) GTEST_SKIP() << "SKIPPED: a network of its own needs root";
    const std::string folder = strf("run-%d", ++runs_);
    Flags flags = flags_of(folder, 100000);
    flags["train.save_steps"] = std::to_string(kSaveSteps);
    flags["parallel.deadline_s"] = "2";
    flags["parallel.work_s"] = "4";
    flags["parallel.heartbeat_s"] = "0.5";
    Process process(on(kRanks, train(flags, more_)), dir_.file("ranks"));
    ASSERT_TRUE(comes(process, folder, moment)) << process.err();
    const std::vector<int> ranks = rank_processes(process.id());
    ASSERT_EQ(ranks.size(), static_cast<size_t>(kRanks));
    std::optional<FrozenThread> frozen;
    if (network) {
      network->cut_off(ranks, lost);
    } else if (loss == Loss::kFrozen) {
      frozen.emplace(ranks[lost]);
      ASSERT_TRUE(frozen->ok()) << process.err();
    } else {
      ::kill(ranks[lost], loss == Loss::kKilled ? SIGKILL : SIGSTOP);
    }
    while (frozen && !frozen->is_over()) std::this_thread::sleep_for(Milliseconds(10));
    const ProcessResult ended = wait_for(process, ranks);
    network.reset();
    // 137: mpirun killed what did not end in its time of grace, or was killed itself.
    EXPECT_TRUE(ended.code == 75 || ended.code == 137) << ended.code << ended.err;
    for (const int rank : ranks) EXPECT_TRUE(ends(rank)) << "an orphan";
    expect_named(ended, loss, lost, moment);
    expect_goes_on(flags, folder, ended);
  }
  // Waits for the moment.
  bool comes(Process& process, const std::string& folder, const Moment& moment) {
    if (moment.is_later && !process.wait_for_err("saved step 20 ")) return false;
    while (!is_there(folder, moment.file) && !process.has_ended()) {
      // One that came and went at the start does not come again.
      if (!moment.is_later && process.err().find("saved step 20 ") != std::string::npos) break;
      std::this_thread::sleep_for(Milliseconds(0.1));
    }
    std::this_thread::sleep_for(Milliseconds(moment.delay_ms));
    return !process.has_ended();
  }
  bool is_there(const std::string& folder, std::string file) {
    if (file.empty()) return true;
    if (!file.starts_with("*")) return std::filesystem::exists(dir_.file(folder + "/" + file));
    std::error_code none;
    for (const auto& step :
         std::filesystem::directory_iterator(dir_.file(folder + "/checkpoints"), none)) {
      const std::string path = step.path().string() + file.substr(1);
      if (step.path().extension() == ".tmp" && std::filesystem::exists(path)) return true;
    }
    return false;
  }
  // Open MPI 4.1.4's mpirun may outlive its ranks for ever, or end of SIGSEGV, when one of them was
  // lost: its PMIx_server_finalize() waits for a lock, once in some dozens of runs. Such a launcher
  // is killed ten seconds behind its last rank.
  static ProcessResult wait_for(Process& process, const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      while (!process.has_ended() && !has_ended(rank)) {
        std::this_thread::sleep_for(Milliseconds(10));
      }
    }
    for (int i = 0; i < 1000 && !process.has_ended(); ++i) {
      std::this_thread::sleep_for(Milliseconds(10));
    }
    if (!process.has_ended()) process.send(SIGKILL);
    ProcessResult result = process.wait();
    const bool crashed =
        result.signal == SIGSEGV && result.err.find("(PMIx_server_finalize+") != std::string::npos;
    if (crashed) result.code = 128 + SIGKILL;
    return result;
  }
  // One line of those that are left says who is lost, which step is saved, and mostly in what the
  // rank was waited for. One that is cut off has lost the others, and may say so too. A SIGTERM
  // that comes with the loss saves nothing: behind the line rank 0, woken for its end, at most says
  // that it saved the step that the line names.
  void expect_named(const ProcessResult& ended, Loss loss, size_t lost, const Moment& moment) {
    int named = 0;
    int64_t named_step = -1;
    for (const std::string& line : errors(ended)) {
      const bool is_it = line.starts_with(strf("pagoda: rank %zu on ", lost));
      const bool another = loss == Loss::kCutOff && line.find(" on ") != std::string::npos;
      named += is_it || another;
      if (!is_it && !another) continue;
      waited_for_ += line.find(" in transfer ") != std::string::npos ||
                     line.find(" in gather") != std::string::npos;
      said_ += line + "\n";
      if (!moment.is_later) continue;
      const size_t step = line.find("; step ");
      ASSERT_NE(step, std::string::npos) << line;
      named_step = std::max<int64_t>(named_step, std::stoll(line.substr(step + 7)));
      EXPECT_GE(named_step, saved_step(ended));
      EXPECT_NE(line.find(" is saved: --resume continues from it"), std::string::npos) << line;
    }
    EXPECT_GE(named, 1) << ended.err;
    EXPECT_LE(named, loss == Loss::kCutOff ? 2 : 1) << ended.err;
    EXPECT_EQ(ended.err.find(": saving step "), std::string::npos) << ended.err;
    const size_t said = ended.err.find("pagoda: rank ");
    const size_t saved = ended.err.find("saved step ", said);
    if (saved == std::string::npos) return;
    EXPECT_LE(std::stoll(ended.err.substr(saved + 11)), named_step) << ended.err;
  }
  static int64_t saved_step(const ProcessResult& ended) {
    int64_t saved = -1;
    for (const std::string& line : lines_of(ended.err)) {
      if (line.starts_with("saved step ")) saved = std::stoll(line.substr(11));
    }
    return saved;
  }
  // Whether or not its parent has looked.
  static bool has_ended(int process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text;
    std::getline(file, text);  // empty where the process goes between opening and reading
    const size_t end = text.rfind(") ");
    return end == std::string::npos || text[end + 2] == 'Z';
  }
  // True once the process has ended, within ten seconds.
  static bool ends(int process) {
    for (int i = 0; i < 100; ++i) {
      if (has_ended(process)) return true;
      std::this_thread::sleep_for(Milliseconds(100));
    }
    return false;
  }
  // No saved step is lost, and the run goes on with one to three ranks. Its last checkpoint has
  // each record once.
  void expect_goes_on(Flags flags, const std::string& folder, const ProcessResult& ended) {
    const int64_t saved = saved_step(ended);
    const bool resumes = has_checkpoint(folder);
    EXPECT_TRUE(resumes || saved < 0);
    // On a loaded machine the moment may come late. Behind the save that was named last there may
    // be another.
    const int64_t steps = std::max(kSteps, saved + kSaveSteps);
    flags["train.steps"] = std::to_string(steps);
    // It goes on with the program's own times, since nobody is lost any more.
    for (const char* time : {"deadline_s", "work_s", "heartbeat_s"}) {
      flags.erase(std::string("parallel.") + time);
    }
    const Words words = train(flags, more_ + (resumes ? Words{"--resume"} : Words()));
    const int processes = 1 + runs_ % 3;
    const ProcessResult again = processes == 1 ? run(words) : mpirun(processes, words);
    ASSERT_EQ(again.code, 0) << again.err;
    const size_t from = again.err.find("resuming from step ");
    EXPECT_EQ(from != std::string::npos, resumes) << again.err;
    if (resumes) {
      EXPECT_GE(std::stoll(again.err.substr(from + 19)), saved);
    }
    EXPECT_TRUE(exported(folder) == weights_of_one(steps)) << again.err;
    EXPECT_EQ(run({"ckpt", "verify", dir_.file(folder)}).code, 0);
  }
  bool has_checkpoint(const std::string& folder) {
    std::error_code none;
    for (const auto& step :
         std::filesystem::directory_iterator(dir_.file(folder + "/checkpoints"), none)) {
      const bool whole = step.path().extension() != ".tmp";
      if (whole && std::filesystem::exists(step.path() / "MANIFEST")) return true;
    }
    return false;
  }

  Words more_;  // of every run's command line
  std::map<int64_t, std::string> weights_of_one_;  // by steps
  std::string said_;
  int runs_ = 0, waited_for_ = 0;
};

// Each rank has a part of every expert, or one of those that go on has several.
class LostPartsTest : public LostRanksTest {
 protected:
  LostPartsTest()
      : LostRanksTest({"--parallel.sharing", "model", "--parallel.hidden_shares", "1",
                       "--parallel.hidden_shares", "1", "--parallel.hidden_shares", "1"}) {}
};

TEST_F(LostRanksTest, Killed) { lose(Loss::kKilled); }

// Their losses take a deadline each: a moment is for one of the two (all: tools/attack).
TEST_F(LostRanksTest, StandingStill) { lose(Loss::kStopped, every_other(0)); }

// Its heart beats on: the deadlines of a transfer and of a save notice it.
TEST_F(LostRanksTest, AliveAndNoFurther) { lose(Loss::kFrozen, {kExchange, kSave}); }

TEST_F(LostRanksTest, SlowAndNotLost) { delay_rank_0(); }

TEST_F(LostRanksTest, CutOff) { lose(Loss::kCutOff, every_other(1)); }

// Each rank once.
TEST_F(LostPartsTest, Killed) { lose(Loss::kKilled, {kExchange, kSave, kCommit}); }

}  // namespace
}  // namespace pagoda
