#include "tests/testing/memory_network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "parallel/host_name.h"

namespace pagoda {

class MemoryCarrier final : public Carrier {
 public:
  MemoryCarrier(MemoryNetwork& network, int rank) : network_(network), rank_(rank) {}
  ~MemoryCarrier() override { network_.cut_off(rank_); }  // nobody reads its memory any more

  int rank() const override { return rank_; }
  int size() const override { return network_.ranks_; }
  std::string host(int rank) const override { return network_.hosts_.at(rank); }
  Status start(const Message& message) override;
  Status test(std::vector<Ended>& ended) override;
  Result<Unasked> peek(int channel) override;
  void leave() override {}

 private:
  struct Sent {
    Message message;
    std::shared_ptr<MemoryNetwork::Letter> letter;
  };
  Status count_call();
  Status receive(const Message& message, MemoryNetwork::Letter& letter);

  MemoryNetwork& network_;
  const int rank_;
  std::vector<Sent> sent_;
  std::map<std::pair<int, int>, std::deque<Message>> wanted_;  // [peer, channel]
};

// REQUIRES: the network is locked.
Status MemoryCarrier::count_call() {
  int& left = network_.calls_left_[static_cast<size_t>(rank_)];
  if (left == 0) return Status(Exit::kIoError, "made up");
  if (left > 0) --left;
  return Status();
}

Status MemoryCarrier::start(const Message& message) {
  CHECK(message.bytes >= 0 && message.bytes <= kMostBytes);
  CHECK(message.peer >= 0 && message.peer < size() && message.peer != rank_);
  std::lock_guard lock(network_.mutex_);
  RETURN_IF_ERROR(count_call());
  if (!message.sends) {
    wanted_[{message.peer, message.channel}].push_back(message);
    return Status();
  }
  auto letter = std::make_shared<MemoryNetwork::Letter>();
  letter->data = message.data;
  letter->bytes = message.bytes;
  letter->due_us = monotonic_us();
  if (network_.most_us_ > 0) {
    letter->due_us += static_cast<int64_t>(network_.random_() %
                                           static_cast<uint64_t>(network_.most_us_));
  }
  network_.boxes_[{rank_, message.peer, message.channel}].push_back(letter);
  int64_t& under_way = network_.under_way_[{rank_, message.peer}];
  under_way += message.bytes;
  network_.most_under_way_ = std::max(network_.most_under_way_, under_way);
  sent_.push_back({message, letter});
  return Status();
}

Status MemoryCarrier::receive(const Message& message, MemoryNetwork::Letter& letter) {
  if (letter.bytes > message.bytes) {
    return Status(Exit::kIoError, strf("made up: rank %d sent more than fits", message.peer));
  }
  if (letter.bytes > 0) {
    std::memcpy(message.data, letter.data, static_cast<size_t>(letter.bytes));
  }
  letter.arrived = true;
  network_.arrivals_.push_back(message.channel);
  return Status();
}

Status MemoryCarrier::test(std::vector<Ended>& ended) {
  std::lock_guard lock(network_.mutex_);
  RETURN_IF_ERROR(count_call());
  if (network_.cut_off_[static_cast<size_t>(rank_)]) return Status();
  std::erase_if(sent_, [&](const Sent& sent) {
    if (!sent.letter->arrived) return false;
    ended.push_back({sent.message.id, sent.message.bytes});
    network_.under_way_[{rank_, sent.message.peer}] -= sent.message.bytes;
    return true;
  });
  for (auto& [from, wanted] : wanted_) {
    if (network_.cut_off_[static_cast<size_t>(from.first)]) continue;
    MemoryNetwork::Box& box = network_.boxes_[{from.first, rank_, from.second}];
    while (!wanted.empty() && !box.empty() && box.front()->due_us <= monotonic_us()) {
      RETURN_IF_ERROR(receive(wanted.front(), *box.front()));
      ended.push_back({wanted.front().id, box.front()->bytes});
      wanted.pop_front();
      box.pop_front();
    }
  }
  return Status();
}

Result<Carrier::Unasked> MemoryCarrier::peek(int channel) {
  std::lock_guard lock(network_.mutex_);
  RETURN_IF_ERROR(count_call());
  for (int peer = 0; peer < size(); ++peer) {
    if (network_.cut_off_[static_cast<size_t>(peer)]) continue;
    const MemoryNetwork::Box& box = network_.boxes_[{peer, rank_, channel}];
    const size_t asked = wanted_[{peer, channel}].size();
    if (box.size() > asked) return Unasked{peer, box[asked]->bytes};
  }
  return Unasked{};
}

MemoryNetwork::MemoryNetwork(int ranks, uint64_t seed, std::vector<std::string> hosts)
    : ranks_(ranks),
      hosts_(hosts.empty() ? std::vector<std::string>(static_cast<size_t>(ranks), host_name())
                           : std::move(hosts)),
      random_(seed) {}

std::unique_ptr<Carrier> MemoryNetwork::carrier(int rank) {
  return std::make_unique<MemoryCarrier>(*this, rank);
}

void MemoryNetwork::slow_down(int most_us) {
  std::lock_guard lock(mutex_);
  most_us_ = most_us;
}

void MemoryNetwork::cut_off(int rank) {
  std::lock_guard lock(mutex_);
  cut_off_[static_cast<size_t>(rank)] = true;
}

void MemoryNetwork::fail(int rank, int calls) {
  std::lock_guard lock(mutex_);
  calls_left_[static_cast<size_t>(rank)] = calls;
}

int64_t MemoryNetwork::most_under_way() const {
  std::lock_guard lock(mutex_);
  return most_under_way_;
}

std::vector<int> MemoryNetwork::arrivals() const {
  std::lock_guard lock(mutex_);
  return arrivals_;
}

}  // namespace pagoda
