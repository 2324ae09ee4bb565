// Ranks as threads, each with a clock of its own: what a rank takes for rank 0's time is that, and
// no message arrives before it was sent.
#include "parallel/rank_clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>

#include "tests/testing/ranks/rank_threads.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

// Ranks' clocks began a day apart, and lose or gain some microseconds a second.
int64_t clock_at(int rank, int64_t elapsed_us) {
  const double rate = 1 + 2e-6 * (rank % 2 == 0 ? rank : -rank);
  return 86'400'000'000 * (rank - 1) + static_cast<int64_t>(rate * static_cast<double>(elapsed_us));
}

std::atomic<int64_t> skipped_us{0};

int64_t elapsed_us() {
  static const int64_t began_us = monotonic_us();
  return monotonic_us() - began_us + skipped_us;
}

int64_t clock_of(int rank) { return clock_at(rank, elapsed_us()); }

TEST(RankClock, OneRankHasItsOwn) {
  RankClock clock;
  EXPECT_EQ(clock.on_rank_0(17), 17);
  RankGroup alone;
  ASSERT_TRUE(clock.compare(alone).ok());
  EXPECT_EQ(clock.on_rank_0(17), 17);
  EXPECT_EQ(clock.error_us(), 0);
}

TEST(RankClock, NoMessageArrivesBeforeItWasSent) {
  const Watchdog watchdog("clocks of ranks", std::chrono::seconds(120));
  constexpr int kRanks = 4, kPairs = 1000;
  struct Message {
    int from = 0, to = 0;
    int64_t sent_us = 0, received_us = 0;  // by the clocks of their ranks, then by rank 0's
  };
  std::vector<Message> messages(kPairs);
  std::mt19937 random(7);
  for (Message& message : messages) {
    message.from = static_cast<int>(random() % kRanks);
    message.to = (message.from + 1 + static_cast<int>(random() % (kRanks - 1))) % kRanks;
  }
  std::mutex mutex;  // guards the next
  int64_t error_us = 0;
  RankThreads ranks(kRanks, {0, 1, 2, 3});
  ranks.run([&](RankGroup& group) {
    const int rank = group.rank();
    RankClock clock([rank] { return clock_of(rank); });
    ASSERT_TRUE(clock.compare(group).ok());
    const int64_t began_us = elapsed_us();
    for (Message& message : messages) {
      int64_t word = 0;
      if (rank == message.from) message.sent_us = clock_of(rank);
      const auto data = std::as_writable_bytes(std::span(&word, 1));
      ASSERT_TRUE(group.pass(message.from, message.to, data).ok());
      if (rank == message.to) message.received_us = clock_of(rank);
    }
    ASSERT_TRUE(group.agree(Status()).ok());
    if (rank == 0) skipped_us = 100'000'000;  // 600 us by the difference of the clocks' rates
    ASSERT_TRUE(group.agree(Status()).ok());
    const int64_t ended_us = elapsed_us();
    ASSERT_TRUE(clock.compare(group).ok());
    for (const int64_t at_us : {began_us, (began_us + ended_us) / 2, ended_us}) {
      EXPECT_NEAR(static_cast<double>(clock.on_rank_0(clock_at(rank, at_us))),
                  static_cast<double>(clock_at(0, at_us)),
                  static_cast<double>(clock.error_us() + 10));
    }
    std::vector<RankClock::Seen> sent, received;
    for (int i = 0; i < kPairs; ++i) {
      const Message& message = messages[static_cast<size_t>(i)];
      if (rank == message.from) {
        sent.push_back({message.to, message.from, message.to, i, message.sent_us});
      }
      if (rank == message.to) {
        received.push_back({message.from, message.from, message.to, i, message.received_us});
      }
    }
    sent.push_back({(rank + 1) % kRanks, rank, rank, kPairs, 0});  // one end alone knows it
    ASSERT_TRUE(clock.put_in_order(group, sent, received).ok());
    for (Message& message : messages) {
      if (rank == message.from) message.sent_us = clock.on_rank_0(message.sent_us);
      if (rank == message.to) message.received_us = clock.on_rank_0(message.received_us);
    }
    const std::lock_guard lock(mutex);
    error_us = std::max(error_us, clock.error_us());
  });
  EXPECT_GT(error_us, 0);
  for (const Message& message : messages) {
    EXPECT_GE(message.received_us, message.sent_us) << message.from << " to " << message.to;
  }
}

// Rank 1's clock is 500 us ahead, rank 2's 300 us behind, and nobody has compared them.
TEST(RankClock, MessagesAreKeptInOrder) {
  const Watchdog watchdog("clocks of ranks", std::chrono::seconds(120));
  const std::vector<std::vector<RankClock::Seen>> sent = {
      {{2, 0, 2, 1, 2000}},                       // at 2000 us
      {{0, 1, 0, 1, 1500}, {2, 1, 2, 1, 3500}},   // at 1000 and at 3000 us
      {{1, 2, 1, 1, 100}}};                       // at 400 us
  const std::vector<std::vector<RankClock::Seen>> received = {
      {{1, 1, 0, 1, 1100}},                       // 100 us later
      {{2, 2, 1, 1, 5900}},                       // 5 ms later
      {{0, 0, 2, 1, 1800}, {1, 1, 2, 1, 2750}}};  // 100 us and 50 us later
  // Rank 2 must be 200 us later for the message from rank 0, and then rank 1 by 550 us earlier for
  // that from rank 1 to 2; the one from rank 1 to 0 alone would take 400 us.
  const int64_t corrections[] = {0, -550, 200};
  RankThreads ranks(3, {0, 1, 2});
  ranks.run([&](RankGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    RankClock clock;
    ASSERT_TRUE(clock.put_in_order(group, sent[rank], received[rank]).ok());
    EXPECT_EQ(clock.correction_us(), corrections[rank]) << rank;
    EXPECT_EQ(clock.on_rank_0(7000), 7000 + corrections[rank]);
  });
}

}  // namespace
}  // namespace pagoda
