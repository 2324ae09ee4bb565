// Transfers arrive whole, in any order of the lanes, with or without delays, and the sender's
// memory is free once they have.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "parallel/local_link.h"
#include "parallel/slow_link.h"

namespace pagoda {
namespace {

std::unique_ptr<Stream> make_lane(const char* name) {
  return make_host_stream({name, WorkKind::kOther, nullptr}, std::make_shared<ThreadPool>(1));
}

std::vector<std::byte> numbered(int first, size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return data;
}

std::unique_ptr<Link> make_link(uint64_t seed) {
  auto local = std::make_unique<LocalLink>();
  if (seed == 0) return local;
  return std::make_unique<SlowLink>(
      std::move(local), SlowLink::Speed{.latency_s = 1e-4, .jitter_s = 2e-3, .seed = seed});
}

TEST(Link, BytesArriveWhenTheLaneGoesOn) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::unique_ptr<Link> link = make_link(seed);
    const auto out = make_lane("out"), in = make_lane("in");
    // The source is written by the sender's lane, and again once it may be.
    std::vector<std::byte> source(1000), target(1000);
    std::vector<std::vector<std::byte>> arrived;
    for (int64_t number = 0; number < 20; ++number) {
      const Transfer transfer{number, 0, 1, 1000};
      const auto content = numbered(static_cast<int>(number), 1000);
      out->enqueue([&source, content] { source = content; });
      const Event free = link->send(transfer, source.data(), *out);
      link->receive(transfer, target.data(), *in);
      in->enqueue([&arrived, &target] { arrived.push_back(target); });
      out->wait(free);
    }
    out->synchronize();
    in->synchronize();
    ASSERT_EQ(arrived.size(), 20u);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(arrived[static_cast<size_t>(i)], numbered(i, 1000));
    EXPECT_EQ(link->counts(), (Link::Counts{{{0, 1}, {20, 20000}}}));
    EXPECT_TRUE(link->status().ok());
  }
}

// Both lanes of both devices are busy with transfers in both directions.
TEST(Link, DirectionsDoNotWaitForEachOther) {
  const std::unique_ptr<Link> link = make_link(7);
  const std::unique_ptr<Stream> out[2] = {make_lane("out 0"), make_lane("out 1")};
  const std::unique_ptr<Stream> in[2] = {make_lane("in 0"), make_lane("in 1")};
  const auto content = numbered(1, 64);
  std::vector<std::byte> target[2] = {std::vector<std::byte>(64), std::vector<std::byte>(64)};
  for (int64_t number = 0; number < 10; ++number) {
    const int from = static_cast<int>(number % 2), to = 1 - from;
    const Transfer transfer{number, from, to, 64};
    link->send(transfer, content.data(), *out[from]);
    link->receive(transfer, target[to].data(), *in[to]);
  }
  for (const auto& lane : in) lane->synchronize();
  EXPECT_EQ(target[0], content);
  EXPECT_EQ(target[1], content);
  EXPECT_EQ(link->counts(), (Link::Counts{{{0, 1}, {5, 320}}, {{1, 0}, {5, 320}}}));
}

TEST(Link, NothingIsAMessageToo) {
  LocalLink link;
  const auto lane = make_lane("lane");
  link.send({1, 0, 1, 0}, nullptr, *lane);
  link.receive({1, 0, 1, 0}, nullptr, *lane);
  lane->synchronize();
  EXPECT_EQ(link.counts(), (Link::Counts{{{0, 1}, {1, 0}}}));
}

TEST(Link, AnUnreceivedTransferStopsNobody) {
  const auto lane = make_lane("lane"), other = make_lane("other");
  {
    LocalLink link;
    const std::byte source{};
    other->wait(link.send({1, 0, 1, 1}, &source, *lane));
  }
  other->synchronize();
}

// Two links share the devices' network cards.
class SharedCards : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 2000;  // 40 ms at the slow cards' rate, 20 ms at the others'

  void SetUp() override {
    for (int l = 0; l < 2; ++l) {
      links_.push_back(std::make_unique<SlowLink>(std::make_unique<LocalLink>(),
                                                  SlowLink::Speed{.cards = cards_}));
    }
  }
  double seconds(const std::vector<Transfer>& transfers) {
    std::vector<std::unique_ptr<Stream>> lanes;
    const std::vector<std::byte> source(kBytes);
    std::vector<std::vector<std::byte>> targets(transfers.size(), source);
    const int64_t begin_us = monotonic_us();
    for (size_t i = 0; i < transfers.size(); ++i) {
      lanes.push_back(make_lane("lane"));
      Link& link = *links_[i % 2];
      link.send(transfers[i], source.data(), *lanes.back());
      link.receive(transfers[i], targets[i].data(), *lanes.back());
    }
    for (const auto& lane : lanes) lane->synchronize();
    return 1e-6 * static_cast<double>(monotonic_us() - begin_us);
  }

  std::shared_ptr<NetworkCards> cards_ =
      std::make_shared<NetworkCards>(std::vector<double>{100e3, 100e3, 100e3, 50e3, 50e3, 50e3});
  std::vector<std::unique_ptr<SlowLink>> links_;
};

TEST_F(SharedCards, OneTransferEachWayAtATime) {
  EXPECT_GE(seconds({{0, 0, 1, kBytes}, {0, 0, 2, kBytes}}), 0.040) << "one sender";
  EXPECT_GE(seconds({{1, 0, 2, kBytes}, {1, 1, 2, kBytes}}), 0.040) << "one receiver";
  EXPECT_GE(seconds({{2, 0, 1, kBytes}, {2, 0, 1, kBytes}}), 0.040) << "one pair, two links";
  EXPECT_GE(seconds({{3, 0, 3, kBytes}}), 0.040) << "the slower card's rate";
  // A ring: all send and all take, each from another one. (The least of some, on a busy machine.)
  double least_s = 1;
  for (int64_t trial = 10; trial < 30; ++trial) {
    least_s = std::min(
        least_s, seconds({{trial, 0, 1, kBytes}, {trial, 1, 2, kBytes}, {trial, 2, 0, kBytes}}));
  }
  EXPECT_GE(least_s, 0.020);
  EXPECT_LT(least_s, 0.040) << "nobody had to wait";
}

// Two slow cards at a time, but not three; and beside a slow one, no more than the rest for a fast
// one. (The least of some, on a busy machine.)
TEST_F(SharedCards, AFastCardHasSeveralSlowPartners) {
  const auto least_s = [&](std::vector<Transfer> transfers) {
    double least_s = 1;
    for (int64_t trial = 10; trial < 30; ++trial) {
      for (Transfer& transfer : transfers) transfer.number = trial;
      least_s = std::min(least_s, seconds(transfers));
    }
    return least_s;
  };
  const double taken_s = least_s({{0, 3, 0, kBytes}, {0, 4, 0, kBytes}});
  EXPECT_GE(taken_s, 0.040);
  EXPECT_LT(taken_s, 0.080) << "it takes both at a time";
  const double sent_s = least_s({{0, 1, 3, kBytes}, {0, 1, 4, kBytes}});
  EXPECT_GE(sent_s, 0.040);
  EXPECT_LT(sent_s, 0.080) << "it sends both at a time";
  EXPECT_GE(seconds({{40, 3, 0, kBytes}, {40, 4, 0, kBytes}, {40, 5, 0, kBytes}}), 0.060);
  EXPECT_GE(seconds({{41, 3, 0, kBytes}, {41, 2, 0, kBytes}}), 0.040) << "4000 bytes at 100e3";
}

// The first transfer has the cards to itself, since the receiver comes to the other one behind it.
TEST_F(SharedCards, AReceiverTakesInItsOrder) {
  const auto lane = make_lane("lane"), first_sender = make_lane("first"),
             second_sender = make_lane("second");
  const std::vector<std::byte> source(kBytes);
  std::vector<std::byte> target(kBytes);
  const int64_t begin_us = monotonic_us();
  SlowLink& link = *links_[0];
  link.send({0, 1, 2, kBytes}, source.data(), *second_sender);
  link.send({0, 0, 2, kBytes}, source.data(), *first_sender);
  link.receive({0, 0, 2, kBytes}, target.data(), *lane);
  const Event first = lane->record();
  link.receive({0, 1, 2, kBytes}, target.data(), *lane);
  first.wait();
  const double first_s = 1e-6 * static_cast<double>(monotonic_us() - begin_us);
  lane->synchronize();
  const double both_s = 1e-6 * static_cast<double>(monotonic_us() - begin_us);
  EXPECT_GE(both_s - first_s, 0.020) << "the second began behind the first";
}

// The second transfer waits for the first, though its receiver is there sooner. (The median of
// some, on a busy machine: a piece of the second is on its way when the first comes.)
TEST_F(SharedCards, ASenderSendsInItsOrder) {
  const auto lane = make_lane("lane"), first_taker = make_lane("first"),
             second_taker = make_lane("second");
  const std::vector<std::byte> source(kBytes);
  std::vector<std::byte> first(kBytes), second(kBytes);
  std::vector<double> waits_s;
  for (int64_t trial = 0; trial < 10; ++trial) {
    SlowLink& link = *links_[0];
    link.send({trial, 0, 1, kBytes}, source.data(), *lane);
    link.send({trial, 0, 2, kBytes}, source.data(), *lane);
    link.receive({trial, 0, 2, kBytes}, second.data(), *second_taker);
    link.receive({trial, 0, 1, kBytes}, first.data(), *first_taker);
    first_taker->synchronize();
    const int64_t first_us = monotonic_us();
    second_taker->synchronize();
    waits_s.push_back(1e-6 * static_cast<double>(monotonic_us() - first_us));
  }
  std::ranges::sort(waits_s);
  EXPECT_GE(waits_s[waits_s.size() / 2], 0.010);
}

TEST_F(SharedCards, AnUnreceivedTransferStopsNobody) {
  const auto lane = make_lane("lane");
  const std::byte source{};
  links_[0]->send({0, 0, 1, 1}, &source, *lane);
  links_.clear();
}

// Numbers count by pair of devices, so that several transfers may have one.
TEST(LocalLink, TellsTransfersOfOneNumberApart) {
  const auto lane = make_lane("lane");
  LocalLink link;
  const auto forth = numbered(1, 64), back = numbered(2, 64);
  std::vector<std::byte> there(64), here(64);
  link.send({0, 0, 1, 64}, forth.data(), *lane);
  link.send({0, 1, 0, 64}, back.data(), *lane);
  link.receive({0, 1, 0, 64}, here.data(), *lane);
  link.receive({0, 0, 1, 64}, there.data(), *lane);
  lane->synchronize();
  EXPECT_EQ(there, forth);
  EXPECT_EQ(here, back);
}

TEST(LinkDeathTest, MismatchesAreBugs) {
  const auto lane = make_lane("lane");
  const std::byte source{};
  std::byte target{};
  EXPECT_DEATH(LocalLink().receive({1, 0, 1, 1}, &target, *lane), "before it is sent");
  EXPECT_DEATH(
      {
        LocalLink link;
        link.send({1, 0, 1, 1}, &source, *lane);
        link.receive({1, 0, 1, 2}, &target, *lane);
      },
      "not received as it was sent");
  EXPECT_DEATH(
      {
        LocalLink link;
        link.send({1, 0, 1, 1}, &source, *lane);
        link.send({1, 0, 1, 1}, &source, *lane);
      },
      "sent twice");
}

}  // namespace
}  // namespace pagoda
