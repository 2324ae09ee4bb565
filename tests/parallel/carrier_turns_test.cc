// Messages of a queue take turns, whatever their flows.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/parallel/carrier_ranks.h"

namespace pagoda {
namespace {

using CarrierTurnsTest = CarrierRanks;

constexpr int kChannel = CarrierFlows::kFirstLinkChannel;

// Rank 0 sends a message to rank 1, which does not take it yet, and then one to rank 2, of one
// queue or two. A message of two parts, 128 KiB each, may stay behind; one with a byte more not.
TEST_F(CarrierTurnsTest, OneMessageWaitsForTheTurnOfAnother) {
  const auto waits = [this](int64_t first_bytes, int queue) {
    ranks_.clear();
    start(3);
    Bytes first = content(first_bytes, 0, 1, 3, 0), second = content(1000, 0, 2, 3, 0);
    Bytes first_target(first.size()), target(second.size()), word(1), heard(1);
    Event first_sent, sent, first_came, came;
    Message before = message(true, 1, kChannel, first, first_sent);
    Message behind = message(true, 2, kChannel, second, sent);
    Message into = message(false, 0, kChannel, first_target, first_came);
    Message behind_into = message(false, 0, kChannel, target, came);
    before.queue = into.queue = 5;
    behind.queue = behind_into.queue = queue;
    ranks_[2]->post({std::move(behind_into)});
    ranks_[0]->post({std::move(before), std::move(behind)});
    // Rank 2 hears of what has begun before it hears the word.
    send(0, 2, 9, word);
    receive(0, 2, 9, heard).wait();
    const bool waited = !came.happened();
    ranks_[1]->post({std::move(into)});
    for (const Event& event : {first_sent, sent, first_came, came}) event.wait();
    EXPECT_EQ(first_target, first);
    EXPECT_EQ(target, second);
    return waited;
  };
  constexpr int64_t kTwoParts = 256 * kKiB;
  EXPECT_TRUE(waits(kTwoParts + 1, 5));
  EXPECT_FALSE(waits(kTwoParts, 5));
  EXPECT_FALSE(waits(kTwoParts + 1, 6));
  EXPECT_FALSE(waits(kTwoParts + 1, -1));
}

// What a rank takes has turns too: it takes from rank 1 first, whoever comes first.
TEST_F(CarrierTurnsTest, WhatComesWaitsForItsTurn) {
  start(3);
  Bytes from_1 = content(kMiB, 1, 0, 3, 0), from_2 = content(kMiB, 2, 0, 3, 0);
  Bytes target_1(from_1.size()), target_2(from_2.size()), word(1), heard(1);
  Event came_1, came_2, sent_1, sent_2;
  Message in_1 = message(false, 1, kChannel, target_1, came_1);
  Message in_2 = message(false, 2, kChannel, target_2, came_2);
  Message out_1 = message(true, 0, kChannel, from_1, sent_1);
  Message out_2 = message(true, 0, kChannel, from_2, sent_2);
  in_1.queue = in_2.queue = out_1.queue = out_2.queue = 0;
  ranks_[0]->post({std::move(in_1), std::move(in_2)});
  ranks_[2]->post({std::move(out_2)});
  send(2, 0, 9, word);
  receive(2, 0, 9, heard).wait();
  EXPECT_FALSE(came_2.happened());
  ranks_[1]->post({std::move(out_1)});
  for (const Event& event : {came_1, came_2, sent_1, sent_2}) event.wait();
  EXPECT_EQ(target_1, from_1);
  EXPECT_EQ(target_2, from_2);
  // Eight parts of either.
  EXPECT_EQ(std::ranges::count(network_->arrivals(), kChannel), 16);
}

// Messages of one queue that all go to one rank have a message under way, and the lead to the next.
TEST_F(CarrierTurnsTest, TurnsLeaveLittleUnderWay) {
  start(2);
  std::vector<Bytes> sources, targets;
  for (int i = 0; i < 20; ++i) {
    sources.push_back(content((i % 3 + 1) * 400 * kKiB, 0, 1, 3, i));
    targets.emplace_back(sources.back().size());
  }
  std::vector<Event> events(40);
  for (size_t i = 0; i < 20; ++i) {
    const int channel = kChannel + static_cast<int>(i) % 4;
    Message out = message(true, 1, channel, sources[i], events[2 * i]);
    Message in = message(false, 0, channel, targets[i], events[2 * i + 1]);
    out.queue = in.queue = 1;
    ranks_[0]->post({std::move(out)});
    ranks_[1]->post({std::move(in)});
  }
  for (const Event& event : events) event.wait();
  EXPECT_EQ(sources, targets);
  EXPECT_LE(network_->most_under_way(), 1200 * kKiB + 2 * 128 * kKiB);
}

// Messages of two parts do not add up: the third waits while nobody takes the first two.
TEST_F(CarrierTurnsTest, ShortMessagesLeaveLittleUnderWay) {
  start(4);
  std::vector<Bytes> sources, targets;
  std::vector<Event> sent(3), came(3);
  const auto post_receive = [&](size_t i) {
    Message in = message(false, 0, kChannel, targets[i], came[i]);
    in.queue = 1;
    ranks_[i + 1]->post({std::move(in)});
  };
  for (int i = 0; i < 3; ++i) {
    sources.push_back(content(200 * kKiB, 0, i + 1, 3, i));
    targets.emplace_back(sources.back().size());
  }
  post_receive(2);
  for (size_t i = 0; i < 3; ++i) {
    Message out = message(true, static_cast<int>(i) + 1, kChannel, sources[i], sent[i]);
    out.queue = 1;
    ranks_[0]->post({std::move(out)});
  }
  Bytes word(1), heard(1);
  send(0, 3, 9, word);
  receive(0, 3, 9, heard).wait();
  EXPECT_FALSE(came[2].happened());
  post_receive(0);
  post_receive(1);
  for (size_t i = 0; i < 3; ++i) {
    sent[i].wait();
    came[i].wait();
  }
  EXPECT_EQ(sources, targets);
}

TEST_F(CarrierTurnsTest, NoDeadlineRunsBeforeTheTurn) {
  start(3);
  Bytes first(kMiB), second(kMiB);
  Event never = Event::make(), first_ended, second_ended;
  const int me = 0;
  Message before = message(true, 1, kChannel, first, first_ended);
  Message behind = message(true, 2, kChannel, second, second_ended);
  before.queue = behind.queue = 0;
  before.owner = behind.owner = &me;
  before.ready = never;
  behind.deadline_s = 0.01;
  ranks_[0]->post({std::move(before), std::move(behind)});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(ranks_[0]->status().ok());
  ranks_[0]->forget(&me);
  EXPECT_TRUE(first_ended.happened() && second_ended.happened());
  EXPECT_TRUE(ranks_[0]->status().ok()) << "neither was under way";
}

TEST_F(CarrierTurnsTest, WhatIsForgottenHasNoTurn) {
  start(3);
  Bytes data(kMiB), sent = content(1000, 0, 2, 3, 0), target(sent.size());
  Event never = Event::make(), forgotten, ended, came;
  const int me = 0, other = 0;
  Message before = message(true, 1, kChannel, data, forgotten);
  Message behind = message(true, 2, kChannel, sent, ended);
  Message into = message(false, 0, kChannel, target, came);
  before.queue = behind.queue = into.queue = 0;
  before.owner = &me;
  before.ready = never;
  behind.owner = &other;
  ranks_[0]->post({std::move(before), std::move(behind)});
  ranks_[2]->post({std::move(into)});
  Bytes word(1), heard(1);
  send(0, 2, 9, word);
  receive(0, 2, 9, heard).wait();
  EXPECT_FALSE(came.happened());
  ranks_[0]->forget(&me);
  came.wait();
  ended.wait();
  EXPECT_TRUE(forgotten.happened());
  EXPECT_EQ(target, sent);
}

}  // namespace
}  // namespace pagoda
