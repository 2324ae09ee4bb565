// The thread between messages and a carrier, on carriers in memory: what is sent arrives whole and
// in order, small messages pass large ones, and after an error everything ends.
#include "parallel/carrier_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/parallel/carrier_ranks.h"

namespace pagoda {
namespace {

using CarrierThreadTest = CarrierRanks;

// Three ranks, two of which are on one host, send each other messages of all sizes on three
// channels, each rank's from a thread of its own, in a random order over the channels.
TEST_F(CarrierThreadTest, MessagesArriveWholeAndInOrder) {
  constexpr int kMessages = 12;
  hosts_ = {"a", "b", "a"};
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ranks_.clear();
    start(3, seed);
    network_->slow_down(500);
    struct Talk {
      int from, to, channel;
      std::vector<Bytes> sent, arrived;
    };
    std::vector<Talk> talks;
    std::mt19937 random(static_cast<uint32_t>(seed));
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        for (const int channel : {0, 1, 7}) {
          if (from == to) continue;
          Talk& talk = talks.emplace_back(Talk{from, to, channel, {}, {}});
          for (int i = 0; i < kMessages; ++i) {
            const auto most = i % 6 == 0 ? 3 * kMiB : 100 * kKiB;
            const auto bytes = i % 5 == 3 ? 0 : static_cast<int64_t>(random()) % most;
            talk.sent.push_back(content(bytes, from, to, channel, i));
            talk.arrived.emplace_back(static_cast<size_t>(bytes), std::byte{0xee});
          }
        }
      }
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank, order = std::mt19937(static_cast<uint32_t>(rank))]() mutable {
        std::vector<std::pair<Talk*, int>> next;
        for (Talk& talk : talks) {
          if (talk.from == rank || talk.to == rank) next.push_back({&talk, 0});
        }
        std::vector<Event> ends;
        while (!next.empty()) {
          const size_t i = order() % next.size();
          auto& [talk, number] = next[i];
          ends.push_back(talk->from == rank
                             ? send(rank, talk->to, talk->channel, talk->sent[number])
                             : receive(talk->from, rank, talk->channel, talk->arrived[number]));
          if (++number == kMessages) next.erase(next.begin() + static_cast<int>(i));
        }
        for (const Event& end : ends) end.wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Talk& talk : talks) {
      for (int i = 0; i < kMessages; ++i) {
        const Bytes& sent = talk.sent[static_cast<size_t>(i)];
        ASSERT_TRUE(sent == talk.arrived[static_cast<size_t>(i)])
            << talk.from << " to " << talk.to << " on " << talk.channel << ", message " << i;
      }
    }
    EXPECT_LE(network_->most_under_way(), 3 * 2 * kMiB);  // the windows of three channels
    for (const auto& rank : ranks_) EXPECT_TRUE(rank->status().ok());
  }
}

// Neither reads a source nor writes a target before its event.
TEST_F(CarrierThreadTest, MemoryIsUsedFromItsEventOn) {
  start(2);
  Bytes source(1000), target(1000, std::byte{1});
  Event written = Event::make(), free = Event::make(), sent, came;
  Message out = message(true, 1, 0, source, sent), in = message(false, 0, 0, target, came);
  out.ready = written;
  in.ready = free;
  ranks_[0]->post({std::move(out)});
  ranks_[1]->post({std::move(in)});
  Bytes first = content(10, 0, 1, 1, 0), other(10);
  send(0, 1, 1, first);
  receive(0, 1, 1, other).wait();  // both threads have seen all
  std::fill(source.begin(), source.end(), std::byte{3});
  written.signal();
  send(0, 1, 1, first);
  receive(0, 1, 1, other).wait();
  EXPECT_EQ(target, Bytes(1000, std::byte{1}));
  free.signal();
  came.wait();
  EXPECT_EQ(target, Bytes(1000, std::byte{3}));
  sent.wait();
}

// What nobody receives takes its window, and no more; other channels go on, also behind it.
TEST_F(CarrierThreadTest, SmallMessagesPassLargeOnes) {
  start(2);
  Bytes large = content(16 * kMiB, 0, 1, 5, 0), small = content(8, 0, 1, 7, 0);
  Bytes large_target(large.size()), small_target(small.size());
  const Event sent = send(0, 1, 5, large);
  send(0, 1, 7, small);
  receive(0, 1, 7, small_target).wait();
  EXPECT_EQ(small_target, small);
  EXPECT_FALSE(sent.happened());
  EXPECT_GE(network_->most_under_way(), 2 * kMiB);
  EXPECT_LE(network_->most_under_way(), 2 * kMiB + 8);
  const Event came = receive(0, 1, 5, large_target);
  const Event again = send(0, 1, 7, small);
  receive(0, 1, 7, small_target).wait();
  came.wait();
  again.wait();
  EXPECT_TRUE(large_target == large);
  EXPECT_LE(network_->most_under_way(), 2 * kMiB + 2 * 8);
}

// A window of each channel, whatever others have under way.
TEST_F(CarrierThreadTest, ChannelsHaveWindowsOfTheirOwn) {
  start(2);
  Bytes one = content(16 * kMiB, 0, 1, 5, 0), other = content(16 * kMiB, 0, 1, 6, 0);
  Bytes one_target(one.size()), other_target(other.size()), word(8), heard(8);
  const Event one_sent = send(0, 1, 5, one), other_sent = send(0, 1, 6, other);
  send(0, 1, 7, word);
  receive(0, 1, 7, heard).wait();
  EXPECT_GE(network_->most_under_way(), 4 * kMiB);
  receive(0, 1, 5, one_target);
  receive(0, 1, 6, other_target);
  one_sent.wait();
  other_sent.wait();
  EXPECT_LE(network_->most_under_way(), 4 * kMiB + 8);
}

TEST_F(CarrierThreadTest, OtherBytesEndEverything) {
  for (const int64_t sent : {7, 9}) {
    SCOPED_TRACE(testing::Message() << sent << " bytes");
    ranks_.clear();
    start(2);
    Bytes source(static_cast<size_t>(sent), std::byte{5}), target(8, std::byte{6});
    send(0, 1, 3, source);
    receive(0, 1, 3, target).wait();
    EXPECT_EQ(target, Bytes(8));
    const Status status = ranks_[1]->status();
    EXPECT_EQ(status.code(), Exit::kIoError);
    EXPECT_EQ(status.message(), sent == 7 ? "rank 1 of 2: talk 3: 7 bytes came, not 8; start all "
                                            "processes again"
                                          : "rank 1 of 2: made up: rank 0 sent more than fits; "
                                            "start all processes again");
    Bytes later(4, std::byte{7});
    receive(0, 1, 4, later).wait();
    EXPECT_EQ(later, Bytes(4));
    send(1, 0, 4, later).wait();
  }
}

TEST_F(CarrierThreadTest, ASilentRankIsNamed) {
  start(3);
  network_->cut_off(1);
  Bytes source(10, std::byte{1}), target(3 * kMiB, std::byte{2});
  Event sent, came, unready = Event::make(), later;
  Message in = message(false, 1, 6, target, came);
  in.deadline_s = 0.03;
  Bytes waiting(5, std::byte{3});
  Message wait = message(false, 2, 6, waiting, later);
  wait.ready = unready;
  send(1, 0, 6, target);  // it starts, and never ends
  ranks_[0]->post({std::move(in), std::move(wait), message(true, 1, 4, source, sent)});
  came.wait();
  sent.wait();
  EXPECT_EQ(target, Bytes(3 * kMiB));
  EXPECT_EQ(ranks_[0]->status().code(), Exit::kStopped);
  EXPECT_EQ(ranks_[0]->status().message(), "rank 1 on b has been silent for 0.03 s in talk 6");
  EXPECT_FALSE(later.happened());
  EXPECT_EQ(waiting, Bytes(5, std::byte{3}));
  unready.signal();
  later.wait();
  EXPECT_EQ(waiting, Bytes(5));
}

// After an error nothing looks again by itself: each message ends by the word of its event, which
// happens while the message is posted.
TEST_F(CarrierThreadTest, AfterAnErrorNoEventIsMissed) {
  constexpr int kRounds = 20'000;
  start(2);
  ranks_[0]->fail(Status(Exit::kStopped, "over"));
  Bytes target(1);
  Event ready;
  std::atomic<int> posted = 0, signalled = 0;
  std::thread other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (posted < i) std::this_thread::yield();
      ready.signal();
      signalled = i;
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    ready = Event::make();
    Event came;
    Message in = message(false, 1, 6, target, came);
    in.ready = ready;
    posted = i;
    ranks_[0]->post({std::move(in)});
    came.wait();
    while (signalled < i) std::this_thread::yield();
  }
  other.join();
}

TEST_F(CarrierThreadTest, WhoAsksLateHearsOfTheErrorToo) {
  start(2);
  std::vector<std::string> early, late;
  ranks_[0]->when_failed([&](const Status& why) { early.push_back(why.message()); });
  for (int i = 0; i < 2; ++i) {
    for (const auto& rank : ranks_) rank->fail(Status(Exit::kStopped, strf("over %d", i)));
    if (i == 0) ranks_[1]->when_failed([&](const Status& why) { late.push_back(why.message()); });
  }
  EXPECT_EQ(early, std::vector<std::string>{"over 0"});
  EXPECT_EQ(late, std::vector<std::string>{"over 0"});
}

// Rank 1 is silent, and its heartbeats say that it waits for rank 2, which waits for nobody or for
// rank 0.
TEST_F(CarrierThreadTest, WhoOnlyWaitsIsNotNamed) {
  constexpr int64_t kLong = 3'600'000'000, kLate = int64_t{1} << 62;
  for (const bool in_circle : {false, true}) {
    ranks_.clear();
    start(3);
    RankWaits& waits = ranks_[0]->waits();
    int accused = -1;
    waits.begin_beats(1000, [&accused](int rank) { accused = rank; });
    waits.note(1, {2, kLong, kLate});
    waits.note(2, {0, in_circle ? kLong : 0, kLate});
    Bytes target(10);
    Event came;
    Message in = message(false, 1, 6, target, came);
    in.deadline_s = 0.03;
    ranks_[0]->post({std::move(in)});
    came.wait();
    EXPECT_EQ(ranks_[0]->status().message(),
              in_circle ? "rank 1 on b has been silent for 0.03 s in talk 6; ranks wait in a "
                          "circle: 0 for 1, 1 for 2, 2 for 0"
                        : "rank 2 on c goes no further: rank 1 on b, which waits for it, has been "
                          "silent for 0.03 s in talk 6");
    EXPECT_EQ(accused, in_circle ? 1 : 2);
    EXPECT_EQ(waits.of(0).peer, 1);
    EXPECT_GE(waits.of(0).waited_us, 30'000);
  }
}

// What is not at the front of its flow, or whose memory may not be used yet, may take its time.
TEST_F(CarrierThreadTest, NoDeadlineRunsBeforeTheEvent) {
  start(2);
  Bytes source = content(1000, 0, 1, 0, 0), target(source.size()), word(1), heard(1);
  Event free = Event::make(), came;
  Message in = message(false, 0, 0, target, came);
  in.ready = free;
  in.deadline_s = 0.01;
  ranks_[1]->post({std::move(in)});
  send(0, 1, 0, source);
  send(0, 1, 9, word);
  receive(0, 1, 9, heard).wait();  // what was sent before is there
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  free.signal();
  came.wait();
  EXPECT_EQ(target, source);
  EXPECT_TRUE(ranks_[1]->status().ok());
}

TEST_F(CarrierThreadTest, NoDeadlineRunsForWhatIsNotExpected) {
  start(2);
  Bytes source = content(1000, 0, 1, 0, 0), target(source.size());
  Event expected = Event::make(), came;
  Message in = message(false, 0, 0, target, came);
  in.expected = expected;
  in.deadline_s = 0.02;
  ranks_[1]->post({std::move(in)});
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_TRUE(ranks_[1]->status().ok());
  send(0, 1, 0, source);
  came.wait();
  EXPECT_EQ(target, source);
  expected.signal();
}

TEST_F(CarrierThreadTest, WhoeverFailsItEndsAll) {
  start(2);
  Bytes target(3 * kMiB, std::byte{2}), source(3 * kMiB);
  const Event came = receive(0, 1, 0, target), sent = send(1, 0, 0, source);
  ranks_[1]->fail(Status(Exit::kDiverged, "first"));
  ranks_[1]->fail(Status(Exit::kIoError, "second"));
  came.wait();
  sent.wait();
  EXPECT_EQ(target, Bytes(3 * kMiB));
  EXPECT_EQ(ranks_[1]->status().message(), "first");
  EXPECT_TRUE(ranks_[0]->status().ok());
}

// Every call to the carrier fails once.
TEST_F(CarrierThreadTest, AnErrorOfTheCarrierEndsAll) {
  for (int calls = 0; calls < 12; ++calls) {
    SCOPED_TRACE(testing::Message() << "after " << calls << " calls");
    ranks_.clear();
    start(2);
    network_->fail(0, calls);
    Bytes target(3 * kMiB, std::byte{2}), source(3 * kMiB, std::byte{3});
    const Event came = receive(1, 0, 0, target), sent = send(0, 1, 0, source);
    came.wait();
    sent.wait();
    EXPECT_EQ(target, Bytes(3 * kMiB));
    EXPECT_EQ(ranks_[0]->status().code(), Exit::kIoError);
    EXPECT_NE(ranks_[0]->status().message().find("made up"), std::string::npos);
  }
}

TEST_F(CarrierThreadTest, ForgettingLeavesOthersAlone) {
  start(2);
  Bytes data(8, std::byte{1}), kept = content(8, 1, 0, 1, 0), heard(8);
  Event never = Event::make(), forgotten, came;
  const int me = 0, other = 0;
  Message first = message(false, 1, 1, data, forgotten);
  first.owner = &me;
  first.ready = never;
  Message second = message(false, 1, 1, heard, came);
  second.owner = &other;
  ranks_[0]->post({std::move(first), std::move(second)});
  ranks_[0]->forget(&me);
  EXPECT_TRUE(forgotten.happened());
  EXPECT_EQ(data, Bytes(8, std::byte{1}));
  never.signal();
  EXPECT_FALSE(came.happened());
  send(1, 0, 1, kept);
  came.wait();
  EXPECT_EQ(heard, kept);
  EXPECT_TRUE(ranks_[0]->status().ok());
}

TEST_F(CarrierThreadTest, ForgettingWhatIsUnderWayIsAnError) {
  start(2);
  Bytes data(8, std::byte{1}), word(1), heard(1);
  Event forgotten;
  const int me = 0;
  Message out = message(true, 1, 1, data, forgotten);
  out.owner = &me;
  ranks_[0]->post({std::move(out)});
  send(0, 1, 9, word);
  receive(0, 1, 9, heard).wait();
  ranks_[0]->forget(&me);
  EXPECT_TRUE(forgotten.happened());
  EXPECT_EQ(ranks_[0]->status().message(),
            "rank 0 of 2: talk 1: given up while under way; start all processes again");
}

// A library that does not return from its opening is left behind.
TEST_F(CarrierThreadTest, WhoDoesNotJoinIsNotWaitedFor) {
  Event opened = Event::make(), left = Event::make();
  const auto open = [opened, left]() mutable -> Result<std::unique_ptr<Carrier>> {
    opened.wait();
    left.signal();
    return Status(Exit::kUnavailable, "too late");
  };
  const Status status = CarrierThread::start(open, 0.01).status();
  EXPECT_EQ(status.code(), Exit::kStopped);
  opened.signal();
  left.wait();
  const auto refused = []() -> Result<std::unique_ptr<Carrier>> {
    return Status(Exit::kUnavailable, "not here");
  };
  EXPECT_EQ(CarrierThread::start(refused, 0).status().message(), "not here");
}

// A carrier that says from which thread it is let go.
class WatchedCarrier final : public Carrier {
 public:
  explicit WatchedCarrier(std::atomic<int>& gone) : gone_(gone) {}
  ~WatchedCarrier() override { gone_ = std::this_thread::get_id() == opened_by_ ? 1 : -1; }

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string host(int) const override { return "a"; }
  Status start(const Message&) override { return Status(); }
  Status test(std::vector<Ended>&) override { return Status(); }
  Result<Unasked> peek(int) override { return Unasked{}; }
  void leave() override {}

 private:
  const std::thread::id opened_by_ = std::this_thread::get_id();
  std::atomic<int>& gone_;
};

// What wakes the thread may hold its loop when the thread has ended; the carrier is gone by then,
// and its own thread has deleted it.
TEST_F(CarrierThreadTest, TheCarrierGoesWithItsThread) {
  std::atomic<int> gone = 0;
  auto thread = CarrierThread::start(
      [&]() -> Result<std::unique_ptr<Carrier>> {
        return std::unique_ptr<Carrier>(std::make_unique<WatchedCarrier>(gone));
      },
      0);
  ASSERT_TRUE(thread.ok());
  thread.value().reset();
  EXPECT_EQ(gone.load(), 1);
}

// A link may be given up before the thread has looked at anything: the others have all of the
// deadline from then on to say that they have heard.
TEST_F(CarrierThreadTest, ALinkMayBeGivenUpAtOnce) {
  MemoryNetwork network(2);
  RankWaits waits;
  CarrierFlows flows(network.carrier(0), waits);
  flows.set_link_deadline(100);
  flows.give_up(Status(Exit::kDiverged, "tired"));
  const Result<bool> moved = flows.advance();
  EXPECT_TRUE(moved.ok()) << moved.status().message();
  EXPECT_TRUE(flows.is_settling());
}

}  // namespace
}  // namespace pagoda
