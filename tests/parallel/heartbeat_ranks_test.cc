// Heartbeats of ranks in one process: all lose the same one, also where it lives and goes no
// further.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "device/device.h"
#include "parallel/heartbeat.h"
#include "parallel/mpi_communicator.h"
#include "tests/testing/memory_network.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

constexpr double kLong = 60;  // nothing of a test may wait for it

// Ranks that are threads.
class HeartbeatTest : public testing::Test {
 protected:
  using Body = std::function<void(MpiCommunicator&)>;
  void run(int ranks, const Body& body) {
    MemoryNetwork network(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        body(*MpiCommunicator::join([&, rank] { return network.carrier(rank); }, 0).value());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const Watchdog watchdog_{"heartbeats", std::chrono::seconds(60)};
};

TEST_F(HeartbeatTest, RanksComeAndGo) {
  for (const int ranks : {1, 2, 5}) {
    run(ranks, [](MpiCommunicator& all) {
      auto heartbeat =
          Heartbeat::start(all, {.period_s = 0.01, .deadline_s = kLong},
                           [](int, const Status& loss) { ADD_FAILURE() << loss.message(); });
      ASSERT_TRUE(heartbeat.ok()) << heartbeat.status().message();
      ASSERT_TRUE(all.barrier().ok());
      if (all.rank() % 2 == 1) heartbeat.value()->stop();
      ASSERT_TRUE(all.barrier().ok());
      EXPECT_TRUE(heartbeat.value()->status().ok());
      EXPECT_EQ(heartbeat.value()->refused(), 0);
    });
  }
}

// One does not beat, so that all others lose it; the first to notice tells them.
TEST_F(HeartbeatTest, AllLoseWhoIsSilent) {
  run(3, [](MpiCommunicator& all) {
    Event lost = Event::make();
    Status loss;
    const bool silent = all.rank() == 1;
    auto heartbeat = Heartbeat::start(
        all, {.period_s = silent ? kLong : 0.02, .deadline_s = silent ? kLong : 0.4},
        [&](int, const Status& status) {
          loss = status;
          lost.signal();
        });
    ASSERT_TRUE(heartbeat.ok()) << heartbeat.status().message();
    lost.wait();
    EXPECT_TRUE(loss.message().starts_with("rank 1 on ")) << loss.message();
    ASSERT_TRUE(all.barrier().ok());
  });
}

// Rank `held` lives and goes no further, another waits for it from some time on, and the third for
// that one. All name the one that is held, itself too, whoever came first to wait.
class HeldRankTest : public HeartbeatTest {
 protected:
  void hold(int held, std::chrono::milliseconds before_first,
            std::chrono::milliseconds before_next) {
    SCOPED_TRACE(testing::Message() << "rank " << held << " is held");
    run(3, [&](MpiCommunicator& all) {
      Event lost = Event::make();
      auto heartbeat = Heartbeat::start(
          all, {.period_s = 0.3, .deadline_s = kLong, .waits = &all.thread().waits()},
          [&](int rank, const Status& why) {
            all.lose(rank, why);
            lost.signal();
          });
      ASSERT_TRUE(heartbeat.ok()) << heartbeat.status().message();
      all.set_deadline(1.6);
      const int place = (all.rank() - held + 3) % 3;
      std::byte byte{};
      if (place > 0) {
        std::this_thread::sleep_for(place == 1 ? before_first : before_next);
        EXPECT_FALSE(all.receive({(all.rank() + 2) % 3, &byte, 1}).ok());
      }
      lost.wait();
      const std::string why = all.thread().status().message();
      EXPECT_TRUE(why.starts_with(strf("rank %d on ", held))) << why;
      EXPECT_TRUE(place != 1 || why.find(" message from ") != std::string::npos) << why;
    });
  }
  void hold_each(int before_first_ms, int before_next_ms) {
    for (int held = 0; held < 3; ++held) {
      hold(held, std::chrono::milliseconds(before_first_ms),
           std::chrono::milliseconds(before_next_ms));
    }
  }
};

TEST_F(HeldRankTest, TheNearerWaitsFirst) { hold_each(0, 500); }
TEST_F(HeldRankTest, TheFartherWaitsFirst) { hold_each(500, 0); }
TEST_F(HeldRankTest, BothWaitAtOnce) { hold_each(0, 0); }

TEST_F(HeartbeatTest, PortsAreTakenFromTheRange) {
  run(2, [](MpiCommunicator& all) {
    auto any = Heartbeat::start(all, {.deadline_s = kLong}, [](int, const Status&) {});
    ASSERT_TRUE(any.ok());
    const int taken = any.value()->port();
    auto refused =
        Heartbeat::start(all, {.first_port = taken, .last_port = taken}, [](int, auto&) {});
    EXPECT_EQ(refused.status().code(), Exit::kUnavailable);
    const std::string why = refused.status().message();
    EXPECT_EQ(why.find("rank 0: no port of "), 0u) << why;
    ASSERT_TRUE(all.barrier().ok());
    const auto other =
        Heartbeat::start(all, {.deadline_s = kLong, .first_port = taken, .last_port = taken + 100},
                         [](int, auto&) {});
    ASSERT_TRUE(other.ok()) << other.status().message();
    ASSERT_TRUE(all.barrier().ok());
  });
}

}  // namespace
}  // namespace pagoda
