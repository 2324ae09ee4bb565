// The built program killed with SIGKILL at random instants. Whatever moment it was, the run resumes
// (or starts over, before its first checkpoint) and ends with the bytes and losses of an unbroken
// one.
#include "tests/testing/interrupted_run_test.h"

namespace pagoda {
namespace {

using KillTest = InterruptedRunTest;

constexpr uint32_t kSeed = 20240607;

// Kills, resumes and kills again until the run gets through. Every other delay is drawn from the
// whole time a run takes, the others from the start of it, so that kills fall into checkpoint 0,
// into resuming, into steps and into saves.
TEST_F(KillTest, KilledAtRandomInstants) {
  constexpr int kKills = 48;
  Flags flags = this->flags("run");
  flags["train.steps"] = "8";
  flags["train.save_steps"] = "1";
  make_reference(flags);
  std::mt19937 random(kSeed);
  int kills = 0, early = 0, resumed = 0, runs = 0;
  while (kills < kKills) {
    const std::string run_dir = strf("run-%d", ++runs);
    flags["train.output_dir"] = dir_.file(run_dir);
    Words resume;
    for (int code = -1; code != 0;) {
      const int64_t range_us = random() % 2 == 0 ? run_us_ : run_us_ / 8;
      const auto delay_us = static_cast<int64_t>(random() % static_cast<uint64_t>(range_us));
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", run " << runs << ", kill "
                                      << kills + 1 << " after " << delay_us << " us");
      const auto process = start(train(flags, resume));
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      process->send(SIGKILL);
      const ProcessResult ended = process->wait();
      code = ended.code;
      resumed += ended.err.find("resuming from step") != std::string::npos;
      if (code == 128 + SIGKILL) {
        ++kills;
        if (std::filesystem::exists(dir_.file(run_dir))) resume = {"--resume"};
      } else if (code == 81) {
        ++early;  // killed before its first checkpoint: it starts over
        std::filesystem::remove_all(dir_.file(run_dir));
        resume.clear();
      } else {
        ASSERT_EQ(code, 0) << ended.err;
      }
    }
    expect_reference(run_dir);
    std::filesystem::remove_all(dir_.file(run_dir));
  }
  std::printf("seed %u: %d kills in %d runs, %d before the first checkpoint, %d after a resume\n",
              kSeed, kills, runs, early, resumed);
  EXPECT_GT(early, 0) << "no kill before checkpoint 0 was whole";
  EXPECT_GT(resumed, 0) << "no kill after a resume";
}

}  // namespace
}  // namespace pagoda
