// All-to-alls executed by devices of one process or of several: for programs that time them.
//
// A device is two streams, as in a run: one sends, one receives, each one thing after the other
// (plan/rounds/exchange_order.h says in which order); what comes in turn from another process comes
// by two alternately. The link may be one of cards that take time:
// then a device has a card for its own node and one for the others. A card sends one message at a
// time and takes one at a time; a message keeps the cards of both ends for its latency and its
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "device/device.h"
#include "parallel/link.h"
#include "plan/rounds/card_lanes.h"
#include "plan/rounds/exchange_order.h"
#include "plan/step/stages.h"
#include "tools/bench/exchange/card_network.h"

namespace pagoda {

// The link of such cards.
std::unique_ptr<Link> make_card_link(const CardNetwork& network);

using ExchangeLegs = std::vector<ExchangeLeg>;

// Carries out what legs of an all-to-all the devices of this process have to do, over a link. What
// comes is read by nobody, so all of it has one place.
class ExchangeDevices {
 public:
  ExchangeDevices(int count, DeviceRange own, std::unique_ptr<Link> link, int64_t most_bytes);
  ~ExchangeDevices();

  // Until own devices have all that is for them, from when `begin` says; nothing is sent before it
  // returns. All processes call this together, with the same legs.
  double seconds(const ExchangeLegs& legs, const std::function<int64_t()>& begin = monotonic_us);

 private:
  size_t pair(int a, int b) const { return static_cast<size_t>(a * count_ + b); }
  Stream& out(int device) const { return *out_[static_cast<size_t>(device - own_.first)]; }
  Stream& in(int device, int lane = 0) const {
    return *in_[static_cast<size_t>((device - own_.first) * kMostCardLanes + lane)];
  }
  Stream& in(const ExchangeLeg& leg);
  void carry(const ExchangeLeg& leg, const std::byte* from, std::byte* to);
  const std::byte* gather(const ExchangeLeg& leg);
  void issue(const ExchangeLeg& leg, std::vector<Event>& arrived);

  const int count_;
  const DeviceRange own_;
  std::vector<std::byte> source_;
  std::vector<std::vector<std::byte>> target_;                   // [device]
  std::vector<std::map<int, std::vector<std::byte>>> gathered_;  // [device][to]
  std::vector<std::vector<std::byte>> passing_;                  // [to][from]
  std::vector<int64_t> numbers_;                                 // [from][to]
  std::map<int, bool> second_;  // [device] its newest leg in turn came by its second stream
  std::vector<Event> sent_;
  std::unique_ptr<Link> link_;
  std::vector<std::unique_ptr<Stream>> out_, in_;  // [own device]; [own device, lane]
};

// Medians over rounds, in each of which all exchanges are carried out one behind the other.
std::vector<double> median_seconds(const std::vector<ExchangeLegs>& exchanges, int rounds,
                                   const std::function<double(const ExchangeLegs&)>& seconds);

}  // namespace pagoda
