// Links between ranks that are threads, over carriers in memory: transfers arrive whole and in
// order, and whatever goes wrong is named and stops no lane.
#include "parallel/mpi_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>

#include "tests/testing/memory_network.h"
#include "tests/testing/transfer_trial.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

std::unique_ptr<Stream> make_lane(const char* name) {
  return make_host_stream({name, WorkKind::kOther, nullptr}, std::make_shared<ThreadPool>(1));
}

class MpiLinkTest : public testing::Test {
 protected:
  using Body = std::function<void(MpiCommunicator&, std::unique_ptr<MpiLink>&)>;

  // Runs each rank on a thread of its own, with a link between endpoints on these ranks.
  void run(const std::vector<int>& rank_of, const Body& body, double deadline_s = 0) {
    const int ranks = *std::max_element(rank_of.begin(), rank_of.end()) + 1;
    network_ = std::make_unique<MemoryNetwork>(ranks, 1, hosts_);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        auto all = MpiCommunicator::join([&, rank] { return network_->carrier(rank); }, 0).take();
        std::vector<LinkEnd> ends;
        std::vector<int> ends_of(static_cast<size_t>(ranks));
        for (const int of : rank_of) {
          ends.push_back({of, nullptr, ends_of[static_cast<size_t>(of)]++ % cards_});
        }
        auto link = MpiLink::create(*all, std::move(ends), deadline_s).take();
        body(*all, link);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Three ranks are on two hosts from now on, or all on one.
  void set_hosts_apart(bool apart) {
    hosts_.clear();
    if (apart) hosts_ = {"a", "b", "a"};
  }

  Watchdog watchdog_{"transfers between ranks", std::chrono::seconds(120)};
  std::unique_ptr<MemoryNetwork> network_;
  int cards_ = 1;  // of each rank, which its endpoints have in turn
  std::vector<std::string> hosts_;  // of the ranks; empty: all are on one
};

// Three ranks with one to three devices, and the memories of their hosts. In half of the runs many
// transfers take turns on the ranks' cards, which are one or two, and in half one rank's host is
// another than that of the two others.
TEST_F(MpiLinkTest, RandomTransfersArriveWhole) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const TransferTrial trial{
        {0, 1, 1, 2, 2, 2, 0, 1, 2}, 200, 2 * kMiB + 77, seed, seed > 4 ? 2 : 0};
    cards_ = static_cast<int>(1 + seed % 2);
    set_hosts_apart(seed % 4 < 2);
    Link::Counts expected;
    int64_t turns = 0;
    for (const Transfer& transfer : trial.all()) {
      turns += transfer.turns > 0;
      Link::Count& count = expected[{transfer.from, transfer.to}];
      ++count.transfers;
      count.bytes += transfer.bytes;
    }
    std::atomic<int64_t> taken = 0;
    run(trial.rank_of, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
      network_->slow_down(seed % 2 == 0 ? 0 : 1000);
      const Status status = trial.run(*link, all.rank());
      EXPECT_TRUE(status.ok()) << status.message();
      Link::Counts mine;
      std::vector<MpiLink::PeerTraffic> traffic(3);
      for (const auto& [pair, count] : expected) {
        const int from = trial.rank_of[pair.first], to = trial.rank_of[pair.second];
        if (to == all.rank()) mine[pair] = count;
        if (to != all.rank() && from != all.rank()) continue;
        Link::Count& sum = to == all.rank() ? traffic[from].received : traffic[to].sent;
        sum.transfers += count.transfers;
        sum.bytes += count.bytes;
      }
      EXPECT_EQ(link->counts(), mine);
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(link->traffic()[rank].sent, traffic[rank].sent);
        EXPECT_EQ(link->traffic()[rank].received, traffic[rank].received);
        taken += link->traffic()[rank].in_turn;
      }
      ASSERT_TRUE(all.barrier().ok());
    });
    EXPECT_EQ(taken, 2 * turns);  // at either end
    EXPECT_EQ(turns > 100, seed > 4);
  }
}

// Two devices of rank 0 send to two ranks, of which the first one does not take it yet: the second
// waits if they share a card, and has the same number of turns. What has begun before comes before
// the word.
TEST_F(MpiLinkTest, TurnsAreThoseOfACard) {
  constexpr int64_t kBytes = kMiB;
  struct Case {
    int cards, turns;
    bool waits;
  };
  for (const Case& c :
       {Case{1, 1, true}, Case{2, 1, false}, Case{1, 2, false}, Case{1, 0, false}}) {
    SCOPED_TRACE(testing::Message() << c.cards << " cards, turns " << c.turns);
    cards_ = c.cards;
    std::barrier asked(3);
    run({0, 0, 0, 1, 2}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
      const auto lane = make_lane("lane"), other = make_lane("other");
      std::vector<std::byte> first(kBytes), second(kBytes, std::byte{2}), word(1), target(kBytes);
      if (all.rank() == 0) {
        other->wait(
            link->send({.from = 0, .to = 3, .bytes = kBytes, .turns = 1}, first.data(), *lane));
        other->wait(link->send({.from = 1, .to = 4, .bytes = kBytes, .turns = c.turns},
                               second.data(), *lane));
        other->wait(link->send({.from = 2, .to = 4, .bytes = 1}, word.data(), *lane));
      }
      if (all.rank() == 2) {
        link->receive({.from = 1, .to = 4, .bytes = kBytes, .turns = c.turns}, target.data(),
                      *other);
        link->receive({.from = 2, .to = 4, .bytes = 1}, word.data(), *lane);
        lane->synchronize();
        EXPECT_EQ(link->traffic()[0].received.transfers, c.waits ? 1 : 2);
      }
      asked.arrive_and_wait();
      if (all.rank() == 1) {
        link->receive({.from = 0, .to = 3, .bytes = kBytes, .turns = 1}, target.data(), *lane);
      }
      lane->synchronize();
      other->synchronize();
      EXPECT_EQ(all.rank() == 2, target == second);
      ASSERT_TRUE(all.barrier().ok());
    });
  }
}

// A lane that is not there yet keeps its memory; the pair's order is that of the numbers.
TEST_F(MpiLinkTest, LanesAreWaitedFor) {
  Event write = Event::make(), free = Event::make();
  run({0, 1}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
    const auto lane = make_lane("lane");
    std::byte byte{1};
    if (all.rank() == 0) {
      lane->wait(write);
      lane->enqueue([&] { byte = std::byte{2}; });
      lane->wait(link->send({3, 0, 1, 1}, &byte, *lane));
      ASSERT_TRUE(all.barrier().ok());
      write.signal();
    } else {
      lane->wait(free);
      link->receive({3, 0, 1, 1}, &byte, *lane);
      ASSERT_TRUE(all.barrier().ok());
      EXPECT_EQ(byte, std::byte{1});
      free.signal();
    }
    lane->synchronize();
    EXPECT_EQ(byte, std::byte{2});
    ASSERT_TRUE(all.barrier().ok());
  });
}

TEST_F(MpiLinkTest, ASilentRankIsNamedWithTheTransfer) {
  Event over = Event::make();
  run({0, 1, 2}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
    const auto lane = make_lane("lane");
    if (all.rank() > 0) {
      over.wait();
      return all.abandon(Status(Exit::kStopped, "over"));
    }
    std::vector<std::byte> target(100, std::byte{7}), later(100, std::byte{8});
    link->receive({8841, 1, 0, 100, 0, "dispatch L3 b5"}, target.data(), *lane);
    lane->synchronize();
    EXPECT_EQ(target, std::vector<std::byte>(100));
    link->receive({0, 2, 0, 100}, later.data(), *lane);
    lane->wait(link->send({0, 0, 2, 100}, later.data(), *lane));
    lane->synchronize();
    EXPECT_EQ(later, std::vector<std::byte>(100));
    EXPECT_EQ(link->status().code(), Exit::kStopped);
    const std::string message = link->status().message();
    EXPECT_EQ(message.find("rank 1 on "), 0u) << message;
    EXPECT_NE(message.find(" has been silent for 0.05 s in transfer 8841 from 1 to 0 "
                           "(dispatch L3 b5)"), std::string::npos) << message;
    EXPECT_FALSE(all.barrier().ok());
    over.signal();
  }, 0.05);
}

// Whoever waits for the turn of a transfer that never ends is not late, and ends with it.
TEST_F(MpiLinkTest, ASilentRankEndsTurnsToo) {
  Event over = Event::make();
  run(
      {0, 1, 2},
      [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
        const auto one = make_lane("one"), other = make_lane("other");
        if (all.rank() > 0) {
          over.wait();
          return all.abandon(Status(Exit::kStopped, "over"));
        }
        std::vector<std::byte> bytes(kMiB), target(100, std::byte{7}), later(100, std::byte{8});
        one->wait(link->send({.number = 7, .from = 0, .to = 1, .bytes = kMiB, .turns = 1},
                             bytes.data(), *one));
        other->wait(link->send({.number = 8, .from = 0, .to = 2, .bytes = kMiB, .turns = 1},
                               bytes.data(), *other));
        link->receive({.number = 9, .from = 1, .to = 0, .bytes = 100, .turns = 2}, target.data(),
                      *one);
        link->receive({.number = 9, .from = 2, .to = 0, .bytes = 100, .turns = 2}, later.data(),
                      *other);
        one->synchronize();
        other->synchronize();
        EXPECT_EQ(target, std::vector<std::byte>(100));
        EXPECT_EQ(later, std::vector<std::byte>(100));
        const std::string message = link->status().message();
        EXPECT_EQ(message.find("rank 1 on "), 0u) << message;
        EXPECT_NE(message.find(" in transfer 7 from 0 to 1"), std::string::npos) << message;
        over.signal();
      },
      0.05);
}

TEST_F(MpiLinkTest, OtherBytesAreAnError) {
  Event over = Event::make();
  run({0, 1}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
    const auto lane = make_lane("lane");
    std::vector<std::byte> bytes(100, std::byte{7});
    if (all.rank() == 0) {
      lane->wait(link->send({5, 0, 1, 99}, bytes.data(), *lane));
      over.wait();
      return all.abandon(Status(Exit::kStopped, "over"));
    }
    link->receive({5, 0, 1, 100}, bytes.data(), *lane);
    lane->synchronize();
    EXPECT_EQ(bytes, std::vector<std::byte>(100));
    EXPECT_EQ(link->status().code(), Exit::kIoError);
    EXPECT_EQ(link->status().message(), "rank 1 of 2: transfer 5 from 0 to 1: 99 bytes came, not "
                                        "100; start all processes again");
    over.signal();
  });
}

// Every call to the carrier of one rank fails once, somewhere in the middle of many transfers. All
// lanes of all ranks come to their ends.
TEST_F(MpiLinkTest, AnErrorStopsNoLane) {
  TransferTrial trial{{0, 1, 2, 1, 0}, 120, 100'000, 3};
  for (int calls = 3; calls < 70; calls += 6) {  // fewer than it starts messages
    SCOPED_TRACE(testing::Message() << "after " << calls << " calls");
    trial.turns = calls % 4 == 1 ? 1 : 0;
    run(trial.rank_of, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
      ASSERT_TRUE(all.barrier().ok());
      if (all.rank() == 1) network_->fail(1, calls);
      const Status status = trial.run(*link, all.rank());
      EXPECT_FALSE(all.rank() == 1 && status.ok());
      link.reset();
      all.abandon(Status(Exit::kStopped, "over"));
    }, 0.2);
  }
}

// One rank gives up in the middle of many transfers, or two do at once. All lanes of all ranks come
// to their ends, with transfers under way in any state, between hosts and within one; nothing is
// used afterwards, and the communicator goes on.
TEST_F(MpiLinkTest, GivingUpEndsTransfersAndNothingElse) {
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const bool both = seed % 3 == 0;
    set_hosts_apart(seed % 4 < 2);
    run({0, 1, 2, 1, 0, 2}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
      TransferTrial trial{{0, 1, 2, 1, 0, 2}, 150, 3 * kMiB, seed};
      network_->slow_down(seed % 2 == 0 ? 0 : 2000);
      trial.giving_up = both && all.rank() == 2 ? 2 : 1;
      trial.gives_up_at = static_cast<int>((seed - 1) % 12 * 11);
      trial.turns = seed > 12 ? 1 : 0;
      EXPECT_EQ(trial.run(*link, all.rank()).message(), "tired");
      EXPECT_EQ(link->status().code(), Exit::kDiverged);
      const int by = link->given_up_by();
      EXPECT_TRUE(both || by == (all.rank() == 1 ? -1 : 1)) << by;
      link.reset();
      for (const size_t bytes : {3, 100'000}) {
        const std::string mine(bytes, static_cast<char>('a' + all.rank()));
        const auto texts = all.gather(mine);
        ASSERT_TRUE(texts.ok()) << texts.status().message();
        for (int rank = 0; rank < 3; ++rank) {
          EXPECT_TRUE(texts.value()[rank] == std::string(bytes, static_cast<char>('a' + rank)));
        }
      }
      EXPECT_FALSE(all.broken());
    }, 20);
  }
}

// What never came is zeros, what came stays; later transfers end at once.
TEST_F(MpiLinkTest, WhatWasGivenUpIsZeros) {
  run({0, 1}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
    const auto lane = make_lane("lane");
    std::vector<std::byte> first(100, std::byte{1}), second(50, std::byte{2});
    std::vector<std::byte> third(3 * kMiB, std::byte{3});
    const std::vector<std::byte> ones(100, std::byte{1}), zeros(third.size());
    if (all.rank() == 0) {
      lane->wait(link->send({1, 0, 1, 100}, first.data(), *lane));
      lane->synchronize();
      ASSERT_TRUE(all.barrier().ok());
      link->give_up(Status(Exit::kIoError, "no more"));
      link->give_up(Status(Exit::kDiverged, "again"));
    } else {
      first.assign(100, std::byte{7});
      link->receive({1, 0, 1, 100}, first.data(), *lane);
      // All parts of one are under way, and some of the other.
      const auto one = make_lane("one"), other = make_lane("other");
      link->receive({2, 0, 1, std::ssize(second)}, second.data(), *one);
      link->receive({3, 0, 1, std::ssize(third)}, third.data(), *other);
      lane->synchronize();
      ASSERT_TRUE(all.barrier().ok());
      one->synchronize();
      other->synchronize();
      EXPECT_EQ(first, ones);
      EXPECT_EQ(second, std::vector<std::byte>(50));
      EXPECT_TRUE(third == zeros);
      EXPECT_EQ(link->given_up_by(), 0);
    }
    lane->wait(link->send({9, all.rank(), 1 - all.rank(), 100}, first.data(), *lane));
    link->receive({9, 1 - all.rank(), all.rank(), 100}, first.data(), *lane);
    lane->synchronize();
    EXPECT_EQ(link->status().message(), "no more");
    ASSERT_TRUE(all.barrier().ok());
  });
}

// A link that ends behind it waits until its memory is used no more, and breaks nothing.
TEST_F(MpiLinkTest, WhatWasGivenUpMayGoAtOnce) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    run({0, 1}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
      network_->slow_down(3000);
      const auto out = make_lane("out"), in = make_lane("in");
      {
        std::vector<std::byte> source(5 * kMiB), target(5 * kMiB);
        const int me = all.rank(), other = 1 - me;
        for (int64_t number = 0; number < 5; ++number) {
          link->send({number, me, other, std::ssize(source)}, source.data(), *out);
          link->receive({number, other, me, std::ssize(target)}, target.data(), *in);
        }
        if (me == 0) link->give_up(Status(Exit::kDiverged, "tired"));
        while (link->status().ok()) std::this_thread::yield();
        link.reset();
        in->synchronize();
      }
      ASSERT_TRUE(all.barrier().ok());
    }, 20);
  }
}

// Who does not answer when the link is given up is named.
TEST_F(MpiLinkTest, ASilentRankEndsGivingUpToo) {
  Event over = Event::make();
  std::barrier joined(3);
  run({0, 1, 2}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
    joined.arrive_and_wait();
    if (all.rank() == 0) network_->cut_off(1);
    const auto lane = make_lane("lane");
    if (all.rank() == 0) {
      std::byte byte{1};
      link->receive({1, 1, 0, 1}, &byte, *lane);
      link->give_up(Status(Exit::kDiverged, "tired"));
      lane->synchronize();
      link.reset();
      EXPECT_EQ(byte, std::byte{0});
      EXPECT_TRUE(all.broken());
      const std::string message = all.barrier().message();
      EXPECT_EQ(message.find("rank 1 on "), 0u) << message;
      EXPECT_NE(message.find(" has been silent for 0.2 s after this: tired"), std::string::npos)
          << message;
      over.signal();
    }
    over.wait();
    all.abandon(Status(Exit::kStopped, "over"));
  }, 0.2);
}

TEST(LinkNoticeTest, IsReadAsItWasWritten) {
  LinkNotice notice;
  notice.why = Status(Exit::kIoError, "a disk\nis gone");
  notice.by = 2;
  notice.flows = {{3, false, 17}, {32767, true, int64_t{1} << 50}};
  EXPECT_EQ(notice.to_text(), "74 2 2 3 0 17 32767 1 1125899906842624 a disk\nis gone");
  const auto back = LinkNotice::parse(notice.to_text(), 3);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->why.code(), Exit::kIoError);
  EXPECT_EQ(back->why.message(), "a disk\nis gone");
  EXPECT_EQ(back->by, 2);
  EXPECT_EQ(back->flows, notice.flows);
  EXPECT_TRUE(LinkNotice::parse("74 0 0 ", 1));
  for (const char* text :
       {"", "74", "74 2 0 x", "0 0 0 x", "74 -1 0 x", "74 0 1 x", "74 0 1 3 0 x", "74 0 1 3 2 0 x",
        "74 0 1 3 0 -1 x", "74 0 1 32768 0 0 x", "74 0 99999999 x", "74 0 0", "256 0 0 x",
        "74 0 1 3 0 99999999999999999999 x"}) {
    EXPECT_FALSE(LinkNotice::parse(text, 2)) << text;
  }
}

TEST_F(MpiLinkTest, AnUnreceivedTransferStopsNobody) {
  const auto other = make_lane("other");
  Event over = Event::make();
  run({0, 1}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
    const auto lane = make_lane("lane");
    std::byte byte{};
    if (all.rank() == 1) {
      over.wait();
      return all.abandon(Status(Exit::kStopped, "over"));
    }
    other->wait(link->send({1, 0, 1, 1}, &byte, *lane));
    link->receive({1, 1, 0, 1}, &byte, *lane);
    link.reset();
    lane->synchronize();
    other->synchronize();
    over.signal();
    all.abandon(Status(Exit::kStopped, "over"));
  });
}

TEST_F(MpiLinkTest, TransfersAreTraced) {
  Trace trace;
  trace.start();
  run({0, 1}, [&](MpiCommunicator& all, std::unique_ptr<MpiLink>& link) {
    link.reset();
    link = MpiLink::create(all, {{0, nullptr}, {1, nullptr}}, 0, &trace).take();
    const auto lane = make_lane("lane");
    std::byte byte{};
    if (all.rank() == 0) {
      lane->wait(link->send({1, 0, 1, 1, 0, "rows"}, &byte, *lane));
    } else {
      link->receive({1, 0, 1, 1, 0, "rows"}, &byte, *lane);
    }
    lane->synchronize();
    ASSERT_TRUE(all.barrier().ok());
  });
  EXPECT_EQ(trace.events(), 2);
}

TEST(MpiLinkDeathTest, NumbersGrow) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  MemoryNetwork network(2);
  const auto join = [&network](int rank) {
    return MpiCommunicator::join([&network, rank] { return network.carrier(rank); }, 0).take();
  };
  const auto send_twice = [&] {
    std::thread other([&] { join(1); });
    const auto all = join(0);
    const auto link = MpiLink::create(*all, {{0, nullptr}, {1, nullptr}}, 0).take();
    const auto lane = make_lane("lane");
    link->send({4, 0, 1, 0}, nullptr, *lane);
    link->send({4, 0, 1, 0}, nullptr, *lane);
  };
  EXPECT_DEATH(send_twice(), "transfer 4 from 0 to 1 comes behind 4");
}

}  // namespace
}  // namespace pagoda
