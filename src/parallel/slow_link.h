// A link that takes time, around one that does not: for tests of order, and to emulate a network on
// one machine. Each pair of devices has a wire of its own, on which one transfer follows another.
// With network cards, a transfer begins once the receiving lane has come to it, as over MpiLink, so
// that a device's lanes take what comes in their own order. Links of several sessions may share the
// cards.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <tuple>
#include <vector>

#include "parallel/link.h"

namespace pagoda {

// What devices send and receive by, each at its own rate, both ways at once, as behind a switch
// whose paths are never the limit. A piece of a transfer takes what the sender's card and the
// receiver's have left, which is at least the rate of the slowest card of all: equal cards have one
// piece each way at a time, and a fast one has several of slower partners. A piece keeps neither
// card while it waits for the other. What was given to them first goes first, as far as its
// receiver has come to it: so a device sends in its order.
class NetworkCards {
 public:
  explicit NetworkCards(std::vector<double> bytes_per_s);  // [device]

  double bytes_per_s(int device) const { return bytes_per_s_.at(static_cast<size_t>(device)); }
  // Any thread. The place of the next transfer behind those before.
  int64_t next_place();
  // Any thread. Blocks for these seconds at the rate of the slower card, and for longer where it
  // gets less; in pieces, and before each of them for others: of all whose two cards have something
  // left, the one with the first place is next.
  void occupy(int64_t place, int from, int to, double seconds);

 private:
  struct Path {
    int from, to;
  };
  double left(const Path& path) const;
  bool free(const Path& path) const { return left(path) >= least_; }
  void take(const Path& path, double rate);

  const std::vector<double> bytes_per_s_;
  const double least_;  // rate of a piece
  std::mutex mutex_;    // guards the rest
  std::condition_variable changed_;
  std::vector<double> sends_, takes_;   // [device] rate that is left
  std::map<int64_t, Path> waiting_;     // by place
  int64_t places_ = 0;
};

class SlowLink : public Link {
 public:
  struct Speed {
    double latency_s = 0;
    double bytes_per_s = 0;  // 0: no limit
    // Each transfer takes up to this much longer, drawn from `seed`.
    double jitter_s = 0;
    uint64_t seed = 1;
    // Not null: these, and the slower one's rate in place of bytes_per_s.
    std::shared_ptr<NetworkCards> cards = nullptr;
  };

  SlowLink(std::unique_ptr<Link> inner, const Speed& speed);
  ~SlowLink() override;

  Event send(const Transfer& transfer, const std::byte* source, Stream& lane) override;
  void receive(const Transfer& transfer, std::byte* target, Stream& lane,
               const TraceLabel& label = {}) override;
  Status status() const override { return inner_->status(); }
  const Counts& counts() const override { return inner_->counts(); }

 private:
  Stream& wire(int from, int to);
  double seconds(const Transfer& transfer);

  std::unique_ptr<Link> inner_;
  Speed speed_;
  std::mt19937_64 random_;
  std::map<std::pair<int, int>, std::unique_ptr<Stream>> wires_;
  // [from, to, number] of transfers that are sent and not received yet, with cards: when the
  // receiving lane has come to it.
  std::map<std::tuple<int, int, int64_t>, Event> expected_;
};

}  // namespace pagoda
