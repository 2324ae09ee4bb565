// Commands of several processes whose rank is lost end, also where one of their threads does not.
#include "cli/joined_run.h"

#include <gtest/gtest.h>

#include "tests/testing/memory_network.h"

namespace pagoda {
namespace {

// Two ranks stand still in their work, and `breaks` breaks their communicator. Returns never.
void stand_still(const std::function<void(MpiCommunicator&)>& breaks, double end_s) {
  MemoryNetwork network(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto all = MpiCommunicator::join([&] { return network.carrier(rank); }, 0).take();
      (void)run_joined(
          *all,
          [&] {
            if (rank == 0) breaks(*all);
            Event::make().wait();
            return Status();
          },
          end_s);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(JoinedRun, AProcessThatStandsStillIsEnded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto lost = [](MpiCommunicator& all) {
    all.abandon(Status(Exit::kStopped, "rank 1 on node07 is gone"));
  };
  EXPECT_EXIT(stand_still(lost, 0.2), testing::ExitedWithCode(75),
              "^pagoda: rank 1 on node07 is gone\n$");
  // A transfer's deadline, which no heartbeat tells of.
  const auto silent = [](MpiCommunicator& all) {
    all.set_deadline(0.1);
    EXPECT_FALSE(all.barrier().ok());
  };
  EXPECT_EXIT(stand_still(silent, 0.2), testing::ExitedWithCode(75),
              "^pagoda: rank 1 on .* has been silent for 0.1 s in barrier\n$");
}

TEST(JoinedRun, RanksOfOtherBuildsEndAlike) {
  for (const bool same : {true, false}) {
    MemoryNetwork network(3);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto all = MpiCommunicator::join([&] { return network.carrier(rank); }, 0).take();
        const bool other = rank == 2 && !same;
        const Status status = check_same_program(*all, other ? "pagoda 7" : "pagoda 8");
        EXPECT_EQ(status.code(), same ? Exit::kOk : Exit::kMismatch);
        if (same) return;
        EXPECT_EQ(status.message(),
                  "rank 2 is \"pagoda 7\", rank 0 \"pagoda 8\"; nothing was "
                  "changed: give all ranks the same program");
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

}  // namespace
}  // namespace pagoda
