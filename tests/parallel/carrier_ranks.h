// Ranks that tests let talk to each other over carriers in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "parallel/carrier_thread.h"
#include "tests/testing/memory_network.h"
#include "tests/testing/watchdog.h"

namespace pagoda {

using Bytes = std::vector<std::byte>;
using Message = CarriedMessage;

// Known to both sides without a word: other bytes in each message, and in each 64 of them.
inline Bytes content(int64_t bytes, int from, int to, int channel, int number) {
  Bytes data(static_cast<size_t>(bytes));
  auto word = static_cast<uint32_t>(from + 10 * to + 100 * channel + 10000 * number);
  for (size_t i = 0; i < data.size(); i += 64, ++word) {
    const uint32_t mixed = word * 0x9e3779b1u;
    std::memset(&data[i], static_cast<int>(mixed >> 24), std::min<size_t>(64, data.size() - i));
  }
  return data;
}

// Some ranks, each with the thread of its carrier.
class CarrierRanks : public testing::Test {
 protected:
  void start(int ranks, uint64_t seed = 1) {
    network_ = std::make_unique<MemoryNetwork>(ranks, seed, hosts_);
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(
          CarrierThread::start([this, rank] { return network_->carrier(rank); }, 0).take());
    }
  }

  // A message of the rank's, with an event for its end.
  Message message(bool sends, int peer, int channel, Bytes& data, Event& ended) {
    Message m;
    m.sends = sends;
    m.peer = peer;
    m.channel = channel;
    m.data = data.data();
    m.bytes = std::ssize(data);
    m.about = [channel] { return strf("talk %d", channel); };
    ended = Event::make();
    m.then = [ended](const CarriedMessage::End&) mutable { ended.signal(); };
    return m;
  }
  Event send(int from, int to, int channel, Bytes& data) {
    Event ended;
    ranks_[from]->post({message(true, to, channel, data, ended)});
    return ended;
  }
  Event receive(int from, int to, int channel, Bytes& data) {
    Event ended;
    ranks_[to]->post({message(false, from, channel, data, ended)});
    return ended;
  }

  std::vector<std::string> hosts_ = {"a", "b", "c", "d"};  // of the ranks, at least
  Watchdog watchdog_{"messages of carriers", std::chrono::seconds(120)};
  std::unique_ptr<MemoryNetwork> network_;  // outlives the ranks
  std::vector<std::unique_ptr<CarrierThread>> ranks_;
};

}  // namespace pagoda
