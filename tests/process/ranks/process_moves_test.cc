// Processes that are killed while experts exchange homes between them: one of them at each call of
// the first move, before anything moved, in the middle of weights and of optimizer state, before
// the ranks agree that it is done and behind that, in the save that follows and behind that; and at
// some calls of a second move, behind what is saved. The run goes on, on as many ranks or on
// others, to the bytes of one process whose experts stay, and each record is saved once.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <thread>

#include "base/check.h"
#include "tests/testing/ranks/mpi_run_test.h"

namespace pagoda {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kSteps = 4;
constexpr int64_t kStride = 3;  // of the second move's calls

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
  // The calls that a rank made from its first move on, and how many of them before the second.
  struct Calls {
    long long all = 0, before = 0;
  };
  static Calls calls_of(int rank, const ProcessResult& result) {
    for (const std::string& line : lines_of(result.out)) {
      Calls calls;
      int of = -1;
      const int read = std::sscanf(line.c_str(), "rank %d: %lld calls, %lld before", &of,
                                   &calls.all, &calls.before);
      if (read == 3 && of == rank) return calls;
    }
    ADD_FAILURE() << result.out << result.err;
    return {};
  }
  void expect_whole(const std::string& folder) {
    EXPECT_EQ(run({"ckpt", "verify", dir_.file(folder)}).code, 0);
    EXPECT_TRUE(exported(folder) == expected_);
  }

  std::string expected_;
};

// Ranks take turns, the other way round from four calls to the next: a move of an expert is four
// calls, and either rank is killed at each of them, of one expert or the other.
TEST_F(MovesTest, AKillAnywhereLosesNothing) {
  const ProcessResult alone = run(train(flags_of("alone", kSteps)));
  ASSERT_EQ(alone.code, 0) << alone.err;
  expected_ = exported("alone");
  const ProcessResult whole = run_ranks(kRanks, -1, 0, "fresh", moving("whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  expect_whole("whole");
  int kills = 0;
  for (int killed = 0; killed < kRanks; ++killed) {
    const Calls calls = calls_of(killed, whole);
    // Two moves of two exchanges, each of weights and state, each of these with its generation.
    EXPECT_GE(calls.before, 2 * 2 * 2);
    EXPECT_GE(calls.all - calls.before, 2 * 2 * 2);
    for (int64_t call = 0; call < calls.all; ++call) {
      if ((call + call / 4) % kRanks != killed) continue;
      if (call >= calls.before && (call - calls.before) % kStride != 0) continue;
      SCOPED_TRACE(testing::Message() << "rank " << killed << " at call " << call);
      ++kills;
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
