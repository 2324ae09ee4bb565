// A link that takes time, around one that does not: for tests of order, and to emulate a network on
// one machine. Each pair of devices has a wire of its own, on which one transfer follows another.
// With network cards, a transfer begins once the receiving lane has come to it, as over MpiLink, so
// that a device takes what comes in its own order. A piece of a transfer has the sender's card and
// the receiver's to itself, and transfers take turns, piece by piece; links of several sessions may
// share the cards.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "device/device_turn.h"
#include "parallel/link.h"

namespace pagoda {

// What a device sends and receives by: one piece each way at a time, both ways at once.
struct NetworkCard {
  double bytes_per_s = 0;
  DeviceTurn sends, takes;
};

class SlowLink : public Link {
 public:
  struct Speed {
    double latency_s = 0;
    double bytes_per_s = 0;  // 0: no limit
    // Each transfer takes up to this much longer, drawn from `seed`.
    double jitter_s = 0;
    uint64_t seed = 1;
    // [device] Not null: these, and the slower one's rate in place of bytes_per_s.
    std::shared_ptr<std::vector<NetworkCard>> cards = nullptr;
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
