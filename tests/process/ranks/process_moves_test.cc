// Processes that are killed while experts exchange homes between them, at each of their calls:
// before anything moved, in the middle of weights and of optimizer state, before the ranks agree
// that it is done and behind that, in the save that follows and behind that. The run goes on, on as
// many ranks or on others, to the bytes of one process whose experts stay, and each record is saved
// once.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "base/check.h"
#include "tests/testing/ranks/mpi_run_test.h"

namespace pagoda {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kSteps = 4;

class MovesTest : public MpiRunTest {
 protected:
  Flags moving(const std::string& folder) const {
    Flags flags = flags_of(folder, kSteps);
    flags["parallel.deadline_s"] = "10";
    flags["parallel.heartbeat_s"] = "1";
    return flags;
  }
  // Rank `killed` of the program dies at a call; -1: none does.
  ProcessResult run_ranks(int ranks, int killed, int64_t call, const char* from,
                          const Flags& flags) {
    Words words = mpirun_words(ranks);
    words = words +
            Words{PAGODA_MOVING_RANKS_BINARY, std::to_string(killed), std::to_string(call), from};
    for (const auto& [key, value] : flags) words = words + Words{key, value};
    Process process(words, dir_.file("moving"));
    // Open MPI 4.1.4's mpirun may outlive ranks that were killed for ever, as
    // process_lost_ranks_test says.
    for (int without_ranks = 0; without_ranks < 200 && !process.has_ended(); ++without_ranks) {
      if (!rank_processes(process.id()).empty()) without_ranks = 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (!process.has_ended()) process.send(SIGKILL);
    return process.wait();
  }
  // The calls that a rank made from its first move on.
  static int64_t calls_of(int rank, const ProcessResult& result) {
    const std::string before = strf("rank %d: ", rank);
    for (const std::string& line : lines_of(result.out)) {
      if (line.starts_with(before)) return std::stoll(line.substr(before.size()));
    }
    ADD_FAILURE() << result.out << result.err;
    return 0;
  }
  void expect_whole(const std::string& folder) {
    EXPECT_EQ(run({"ckpt", "verify", dir_.file(folder)}).code, 0);
    EXPECT_TRUE(exported(folder) == expected_);
  }

  std::string expected_;
};

TEST_F(MovesTest, AKillAnywhereLosesNothing) {
  const ProcessResult alone = run(train(flags_of("alone", kSteps)));
  ASSERT_EQ(alone.code, 0) << alone.err;
  expected_ = exported("alone");
  const ProcessResult whole = run_ranks(kRanks, -1, 0, "fresh", moving("whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  expect_whole("whole");
  int kills = 0;
  for (int killed = 0; killed < kRanks; ++killed) {
    const int64_t calls = calls_of(killed, whole);
    // Two moves of two exchanges, each of weights and state, each of these with its generation.
    EXPECT_GE(calls, 2 * 2 * 2 * 2);
    for (int64_t call = 0; call < calls; ++call, ++kills) {
      SCOPED_TRACE(testing::Message() << "rank " << killed << " at call " << call);
      const std::string folder = strf("run-%d-%lld", killed, (long long)call);
      const ProcessResult ended = run_ranks(kRanks, killed, call, "fresh", moving(folder));
      EXPECT_NE(ended.code, 0) << "it was to be killed";
      const int ranks = 1 + kills % 3;
      const ProcessResult rest = run_ranks(ranks, -1, 0, "resume", moving(folder));
      ASSERT_EQ(rest.code, 0) << ranks << " ranks go on: " << rest.err;
      expect_whole(folder);
    }
  }
}

}  // namespace
}  // namespace pagoda
