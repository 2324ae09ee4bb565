// Ranks that are threads talk over carriers in memory: what they give arrives, and whoever is
// silent, or does something else, is named.
#include "parallel/mpi_communicator.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "parallel/rank_group.h"
#include "tests/testing/memory_network.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

std::string host() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

class MpiCommunicatorTest : public testing::Test {
 protected:
  using Body = std::function<void(MpiCommunicator&)>;

  // Runs each rank on a thread of its own, from joining to leaving.
  void run(int ranks, const Body& body, double deadline_s = 0) {
    MemoryNetwork network(ranks);
    network.slow_down(200);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        auto all = MpiCommunicator::join([&, rank] { return network.carrier(rank); }, deadline_s);
        ASSERT_TRUE(all.ok()) << all.status().message();
        EXPECT_EQ(all.value()->rank(), rank);
        EXPECT_EQ(all.value()->size(), ranks);
        body(*all.value());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Watchdog watchdog_{"ranks that talk", std::chrono::seconds(120)};
};

// Empty, below and above what fits with the size (2032 bytes), and of several parts.
TEST_F(MpiCommunicatorTest, TextsAreGathered) {
  for (const int ranks : {1, 2, 4}) {
    run(ranks, [ranks](MpiCommunicator& all) {
      for (const size_t bytes : {0, 1, 2032, 2033, 3000000}) {
        const auto text_of = [bytes](int rank) {
          return std::string(rank == 1 ? bytes / 2 : bytes, static_cast<char>('a' + rank));
        };
        const auto texts = all.gather(text_of(all.rank()));
        ASSERT_TRUE(texts.ok()) << texts.status().message();
        ASSERT_EQ(texts.value().size(), static_cast<size_t>(ranks));
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_TRUE(texts.value()[static_cast<size_t>(rank)] == text_of(rank));
        }
      }
      EXPECT_TRUE(all.barrier().ok());
    });
  }
}

TEST_F(MpiCommunicatorTest, NobodyPassesABarrierAlone) {
  std::atomic<int> before{0};
  run(3, [&before](MpiCommunicator& all) {
    for (int round = 1; round <= 5; ++round) {
      ++before;
      ASSERT_TRUE(all.barrier().ok());
      EXPECT_GE(before, 3 * round);
      ASSERT_TRUE(all.barrier().ok());
    }
  });
}

TEST_F(MpiCommunicatorTest, PiecesArriveInOrder) {
  run(2, [](MpiCommunicator& all) {
    std::byte data[3] = {std::byte{1}, std::byte{2}, std::byte{3}}, heard[3] = {};
    if (all.rank() == 0) {
      for (std::byte& byte : data) ASSERT_TRUE(all.send({1, &byte, 1}).ok());
    } else {
      for (std::byte& byte : heard) ASSERT_TRUE(all.receive({0, &byte, 1}).ok());
      EXPECT_TRUE(std::equal(data, data + 3, heard));
    }
    // Both at once.
    std::byte mine{static_cast<unsigned char>(10 + all.rank())}, its{};
    const int other = 1 - all.rank();
    ASSERT_TRUE(all.exchange(std::vector{OutgoingPiece{other, &mine, 1}},
                             std::vector{IncomingPiece{other, &its, 1}})
                    .ok());
    EXPECT_EQ(static_cast<int>(its), 10 + other);
  });
}

TEST_F(MpiCommunicatorTest, AnotherCallIsNoticed) {
  run(2, [](MpiCommunicator& all) {
    const Status status = all.rank() == 0 ? all.barrier() : all.gather("x").status();
    EXPECT_EQ(status.code(), Exit::kInternal);
    EXPECT_EQ(status.message(),
              strf("rank %d on ", 1 - all.rank()) + host() + " does not take part in a " +
                  (all.rank() == 0 ? "barrier" : "gather") + "; please report this");
    EXPECT_TRUE(all.broken());
    EXPECT_FALSE(all.barrier().ok());
  });
}

TEST_F(MpiCommunicatorTest, WhoLeavesIsNoticed) {
  run(2, [](MpiCommunicator& all) {
    if (all.rank() == 0) return;
    EXPECT_EQ(all.gather("").status().code(), Exit::kInternal);
  });
}

TEST_F(MpiCommunicatorTest, ASilentRankIsNamed) {
  Event done = Event::make();
  run(2, [&done](MpiCommunicator& all) {
    all.set_deadline(all.rank() == 0 ? 0.05 : 0);
    if (all.rank() == 1) {
      done.wait();
      return all.abandon(Status(Exit::kStopped, "enough"));
    }
    const Status status = all.gather("").status();
    EXPECT_EQ(status.code(), Exit::kStopped);
    EXPECT_EQ(status.message(), "rank 1 on " + host() + " has been silent for 0.05 s in gather");
    done.signal();
  });
}

// Rank 1 has something to do before a call: longer than the deadline of others, and, at the end,
// longer than they wait for such work.
TEST_F(MpiCommunicatorTest, ARankAtWorkOfItsOwnHasMoreTime) {
  const auto work = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  Event done = Event::make();
  run(2, [&](MpiCommunicator& all) {
    RankGroup group(&all, nullptr);
    group.set_deadlines(0.2, 60);
    {
      const RankGroup::OwnWork loads(group);
      const RankGroup::OwnWork tokens(group);
      if (all.rank() == 1) work(0.6);
      EXPECT_TRUE(group.agree(Status()).ok());
    }
    {
      const RankGroup::OwnWork saves(group);
      if (all.rank() == 1) work(0.6);
      EXPECT_TRUE(group.agree(Status()).ok());
    }
    if (all.rank() == 1) {
      done.wait();
      return all.abandon(Status(Exit::kStopped, "enough"));
    }
    EXPECT_EQ(group.agree(Status()).message(),
              "rank 1 on " + host() + " has been silent for 0.2 s in gather");
    done.signal();
  });
  done = Event::make();
  run(2, [&](MpiCommunicator& all) {
    RankGroup group(&all, nullptr);
    group.set_deadlines(0.05, 0.2);
    const RankGroup::OwnWork loads(group);
    if (all.rank() == 1) {
      done.wait();
      return all.abandon(Status(Exit::kStopped, "enough"));
    }
    EXPECT_EQ(group.agree(Status()).message(),
              "rank 1 on " + host() + " has been silent for 0.2 s in gather");
    done.signal();
  });
}

TEST_F(MpiCommunicatorTest, WhoDoesNotLeaveIsAnError) {
  run(2, [](MpiCommunicator& all) { EXPECT_TRUE(all.leave().ok()); });
  Event done = Event::make();
  run(2, [&done](MpiCommunicator& all) {
    all.set_deadline(all.rank() == 0 ? 0.05 : 0);
    if (all.rank() == 1) {
      done.wait();
      return all.abandon(Status(Exit::kStopped, "enough"));
    }
    const Status status = all.leave();
    EXPECT_EQ(status.code(), Exit::kStopped);
    EXPECT_EQ(status.message(),
              "rank 1 on " + host() + " has been silent for 0.05 s in common end");
    EXPECT_TRUE(all.broken());
    done.signal();
  });
}

TEST_F(MpiCommunicatorTest, AWaitingCallEndsWhenItIsAbandoned) {
  run(2, [](MpiCommunicator& all) {
    if (all.rank() == 1) {  // it never takes part
      return all.abandon(Status(Exit::kStopped, "tired"));
    }
    std::thread other([&all] { all.abandon(Status(Exit::kStopped, "rank 1 is dead")); });
    std::byte byte{};
    EXPECT_EQ(all.receive({1, &byte, 1}).message(), "rank 1 is dead");
    other.join();
  });
}

TEST_F(MpiCommunicatorTest, ALossSaysWhatTheRankWasWaitedForIn) {
  Event begun = Event::make(), done = Event::make();
  run(3, [&](MpiCommunicator& all) {
    std::byte bytes[3] = {};
    if (all.rank() == 1) {
      EXPECT_TRUE(all.receive({0, bytes, 1}).ok());
      begun.signal();
    }
    if (all.rank() != 0) {
      done.wait();
      return all.abandon(Status(Exit::kStopped, "enough"));
    }
    std::thread other([&] {
      begun.wait();  // and so have the other messages of the exchange
      all.lose(2, Status(Exit::kStopped, "rank 2 is dead"));
    });
    const std::vector<OutgoingPiece> out = {{1, bytes, 1}};
    const std::vector<IncomingPiece> in = {{1, bytes + 1, 1}, {2, bytes + 2, 1}};
    EXPECT_EQ(all.exchange(out, in).message(),
              "rank 2 is dead; rank 0 waited for it in message from 2 to 0");
    other.join();
    done.signal();
  });
  // Nothing was waited for.
  run(2, [](MpiCommunicator& all) {
    all.lose(1 - all.rank(), Status(Exit::kStopped, "the other is dead"));
    EXPECT_EQ(all.barrier().message(), "the other is dead");
  });
}

}  // namespace
}  // namespace pagoda
