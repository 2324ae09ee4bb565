// The built program killed with SIGKILL at random instants. Whatever moment it was, the run resumes
// (or starts over, before its first checkpoint) and ends with the bytes and losses of an unbroken
// one.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "base/check.h"
#include "tests/testing/interrupted_run_test.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kSeed = 20240607;

// How a kill finds its moment.
enum class Moment { kAnyTime, kStart, kSave };

class KillTest : public InterruptedRunTest {
 protected:
  // Lets `process` run until a moment of the kind; for a save, until a checkpoint is being written
  // or the process is over.
  void wait_for(Moment moment, int64_t random, const std::string& run_dir, const Process& process) {
    using std::chrono::microseconds;
    if (moment != Moment::kSave) {
      const int64_t range_us = moment == Moment::kAnyTime ? run_us_ : run_us_ / 8;
      return std::this_thread::sleep_for(microseconds(random % range_us));
    }
    // Mostly the first one, which is checkpoint 0 in a fresh run; sometimes one or two later.
    for (int64_t skip = random % 3; skip >= 0; --skip) {
      while (is_saving(run_dir) && !process.has_ended()) std::this_thread::sleep_for(kPoll);
      while (!is_saving(run_dir) && !process.has_ended()) std::this_thread::sleep_for(kPoll);
    }
    std::this_thread::sleep_for(microseconds(random % 1000));
  }

 private:
  static constexpr std::chrono::microseconds kPoll{100};

  bool is_saving(const std::string& run_dir) const {
    std::error_code gone;  // entries come and go while they are listed
    for (fs::directory_iterator at(dir_.file(run_dir) + "/checkpoints", gone), end;
         !gone && at != end; at.increment(gone)) {
      if (at->path().string().ends_with(".tmp")) return true;
    }
    return false;
  }
};

// Kills, resumes and kills again until the run gets through, until every kind of moment was met.
TEST_F(KillTest, KilledAtRandomInstants) {
  constexpr int kKills = 24, kEarly = 2, kResumed = 5, kSaving = 5, kMostRuns = 60;
  Flags flags = this->flags("run");
  flags["train.steps"] = "8";
  flags["train.save_steps"] = "1";
  make_reference(flags);
  std::mt19937 random(kSeed);
  int kills = 0, early = 0, resumed = 0, saving = 0, runs = 0;
  while (kills < kKills || early < kEarly || resumed < kResumed || saving < kSaving) {
    const std::string run_dir = strf("run-%d", ++runs);
    ASSERT_LE(runs, kMostRuns) << kills << " kills, " << early << " early, " << resumed
                               << " after a resume, " << saving << " in a save";
    flags["train.output_dir"] = dir_.file(run_dir);
    Words resume;
    for (int code = -1; code != 0;) {
      const auto moment = static_cast<Moment>(random() % 3);
      const auto draw = static_cast<int64_t>(random());
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", run " << runs << ", kill "
                                      << kills + 1 << " in moment " << static_cast<int>(moment)
                                      << " drawn " << draw);
      const auto process = start(train(flags, resume));
      wait_for(moment, draw, run_dir, *process);
      process->send(SIGKILL);
      const ProcessResult ended = process->wait();
      code = ended.code;
      if (code == 128 + SIGKILL) {
        ++kills;
        resumed += ended.err.find("resuming from step") != std::string::npos;
        saving += moment == Moment::kSave;
        if (fs::exists(dir_.file(run_dir))) resume = {"--resume"};
      } else if (code == 81) {
        ++early;  // killed before its first checkpoint: the same command starts over
        resume.clear();
      } else {
        ASSERT_EQ(code, 0) << ended.err;
      }
    }
    expect_reference(run_dir);
    fs::remove_all(dir_.file(run_dir));
  }
  std::printf("seed %u: %d kills in %d runs, %d before the first checkpoint, %d after a resume, "
              "%d in a save\n", kSeed, kills, runs, early, resumed, saving);
}

}  // namespace
}  // namespace pagoda
