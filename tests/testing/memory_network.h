// Carriers between ranks that are threads of one process, in memory: what MPI does between
// processes. The receiver's carrier copies, while it is asked, so that sanitizers see who uses
// which memory when.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/carrier.h"

namespace pagoda {

class MemoryNetwork {
 public:
  // `hosts` are those of the ranks; without them all are on this one.
  explicit MemoryNetwork(int ranks, uint64_t seed = 1, std::vector<std::string> hosts = {});

  std::unique_ptr<Carrier> carrier(int rank);

  // Messages take up to so long from now on, drawn with the seed; those of a channel stay in order.
  void slow_down(int most_us);
  // What is under way to and from the rank, and what it starts from now on, never ends.
  void cut_off(int rank);
  // The rank's carrier fails at the call after `calls` further ones.
  void fail(int rank, int calls);

  // The most bytes that were under way at a time from one rank to another. A message is so from its
  // start until its sender knows that it has arrived.
  int64_t most_under_way() const;
  // Channels of the messages in the order in which they arrived, anywhere.
  std::vector<int> arrivals() const;

 private:
  friend class MemoryCarrier;
  struct Letter {
    const std::byte* data = nullptr;
    int64_t bytes = 0, due_us = 0;
    bool arrived = false;
  };
  using Box = std::deque<std::shared_ptr<Letter>>;

  const int ranks_;
  const std::vector<std::string> hosts_;
  mutable std::mutex mutex_;  // guards the rest
  std::mt19937_64 random_;
  int most_us_ = 0;
  std::vector<bool> cut_off_ = std::vector<bool>(static_cast<size_t>(ranks_));
  std::vector<int> calls_left_ = std::vector<int>(static_cast<size_t>(ranks_), -1);  // -1: no end
  std::map<std::tuple<int, int, int>, Box> boxes_;  // [from, to, channel]
  std::map<std::pair<int, int>, int64_t> under_way_;
  int64_t most_under_way_ = 0;
  std::vector<int> arrivals_;
};

}  // namespace pagoda
