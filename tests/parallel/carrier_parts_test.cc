// The parts in which messages go: small ones between hosts, and for turns.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/parallel/carrier_ranks.h"

namespace pagoda {
namespace {

class CarrierPartsTest : public CarrierRanks {
 protected:
  // In how many parts so many bytes went from one rank to another, on a channel of their own.
  int64_t parts(int from, int to, int64_t bytes, int queue = -1) {
    const int channel = next_channel_++;
    Bytes source = content(bytes, from, to, channel, 0), target(source.size());
    Event sent, came;
    Message out = message(true, to, channel, source, sent);
    Message in = message(false, from, channel, target, came);
    out.queue = in.queue = queue;
    ranks_[from]->post({std::move(out)});
    ranks_[to]->post({std::move(in)});
    sent.wait();
    came.wait();
    EXPECT_TRUE(target == source);
    return std::ranges::count(network_->arrivals(), channel);
  }

  int next_channel_ = CarrierFlows::kFirstLinkChannel;
};

// Ranks 0 and 1 are on one host, rank 2 is on another.
TEST_F(CarrierPartsTest, ThoseBetweenHostsAreSmall) {
  hosts_ = {"a", "a", "b"};
  start(3);
  EXPECT_EQ(parts(0, 1, 2 * kMiB + 1), 3);   // of 1 MiB
  EXPECT_EQ(parts(0, 2, 2 * kMiB + 1), 17);  // of 128 KiB
  EXPECT_EQ(parts(2, 1, 2 * kMiB + 1), 17);
  EXPECT_EQ(parts(0, 1, 128 * kKiB + 1), 1);
  EXPECT_EQ(parts(0, 2, 128 * kKiB + 1), 2);
  EXPECT_EQ(parts(2, 0, 128 * kKiB), 1);
  EXPECT_EQ(parts(0, 2, 0), 1);
}

TEST_F(CarrierPartsTest, ThoseOfTurnsAreSmallWithinAHostToo) {
  hosts_ = {"a", "a", "b"};
  start(3);
  EXPECT_EQ(parts(0, 1, 2 * kMiB + 1, 0), 17);
  EXPECT_EQ(parts(2, 1, 2 * kMiB + 1, 0), 17);
}

// What goes to or from a GPU is cut at each MiB (mpi_link.cc), what is in host memory is not.
TEST_F(CarrierPartsTest, EitherEndMayCutAtEachMiB) {
  constexpr int kChannel = 5;
  for (const bool far : {false, true}) {
    hosts_ = {"a", far ? "b" : "a"};
    for (const bool sender_cuts : {false, true}) {
      SCOPED_TRACE(testing::Message() << (far ? "far, " : "near, ") << sender_cuts);
      ranks_.clear();
      start(2);
      Bytes source = content(2 * kMiB + 100, 0, 1, kChannel, 0), target(source.size());
      std::vector<Event> events;
      const auto post = [&](bool sends, Bytes& data, size_t first, size_t bytes) {
        Message m = message(sends, sends ? 1 : 0, kChannel, data, events.emplace_back());
        m.data += first;
        m.bytes = static_cast<int64_t>(bytes);
        ranks_[sends ? 0 : 1]->post({std::move(m)});
      };
      Bytes& cut = sender_cuts ? source : target;
      Bytes& whole = sender_cuts ? target : source;
      for (size_t first = 0; first < cut.size(); first += size_t{kMiB}) {
        post(sender_cuts, cut, first, std::min(size_t{kMiB}, cut.size() - first));
      }
      post(!sender_cuts, whole, 0, whole.size());
      for (const Event& event : events) event.wait();
      EXPECT_TRUE(target == source);
      EXPECT_EQ(std::ranges::count(network_->arrivals(), kChannel), far ? 17 : 3);
    }
  }
}

// A notice of so many flows has more than 128 KiB, and comes whole from another host.
TEST_F(CarrierPartsTest, ANoticeIsOnePart) {
  constexpr int kFirst = 10'000, kFlows = 14'000;  // "10000 0 1 ": 10 bytes of each
  hosts_ = {"a", "b"};
  start(2);
  Bytes targets(kFlows, std::byte{1});
  std::vector<Event> ended(kFlows);
  std::vector<Message> messages;
  for (int i = 0; i < kFlows; ++i) {
    messages.push_back(message(false, 1, kFirst + i, targets, ended[i]));
    messages.back().data += i;
    messages.back().bytes = 1;
  }
  ranks_[0]->post(std::move(messages));
  Bytes word(1), heard(1);
  send(1, 0, 9, word);
  receive(1, 0, 9, heard).wait();    // by then all of them have begun
  ranks_[0]->set_link_deadline(20);  // it ends, also where rank 1 does not understand
  ranks_[0]->give_up_link(Status(Exit::kDiverged, "tired"));
  for (const Event& event : ended) event.wait();
  EXPECT_EQ(targets, Bytes(kFlows));
  EXPECT_TRUE(ranks_[0]->status().ok()) << ranks_[0]->status().message();
  EXPECT_TRUE(ranks_[1]->status().ok()) << ranks_[1]->status().message();
  EXPECT_EQ(ranks_[1]->link_given_up().by, 0);
}

}  // namespace
}  // namespace pagoda
