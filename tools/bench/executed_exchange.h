// All-to-alls executed by devices whose network cards take time: for programs that time them.
//
// A device is two streams, as in a run: one sends, one receives, each one thing after the other
// (plan/rounds/exchange_order.h says in which order). It has a card for its own node and one for
// the others. A card sends one message at a time and takes one at a time; a message keeps the cards
// of both ends for its latency and its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"
#include "parallel/link.h"
#include "plan/rounds/card_lanes.h"
#include "plan/rounds/exchange_order.h"

namespace pagoda {

struct CardNetwork {
  int nodes = 4, each = 2;
  double within_s = 10e-6, between_s = 50e-6;  // latencies
  double within_bytes_per_s = 250e6, between_bytes_per_s = 50e6;

  int devices() const { return nodes * each; }
  bool same_node(int a, int b) const { return a / each == b / each; }
  double seconds(int from, int to, int64_t bytes) const {
    const bool within = same_node(from, to);
    return (within ? within_s : between_s) +
           static_cast<double>(bytes) / (within ? within_bytes_per_s : between_bytes_per_s);
  }
  ExchangeNodes exchange_nodes() const {
    std::vector<int> node;
    for (int d = 0; d < devices(); ++d) node.push_back(d / each);
    return ExchangeNodes(std::move(node));
  }
};

// The link of those cards.
std::unique_ptr<Link> make_card_link(const CardNetwork& network);

// Carries out an all-to-all's legs over a link. What comes is read by nobody, so all of it has one
// place.
class ExchangeDevices {
 public:
  ExchangeDevices(int count, std::unique_ptr<Link> link, int64_t most_bytes);
  ~ExchangeDevices();

  double seconds(const std::vector<ExchangeLeg>& legs);

 private:
  size_t pair(int a, int b) const { return static_cast<size_t>(a * count_ + b); }
  Stream& in(int device, int lane = 0) const {
    return *in_[static_cast<size_t>(device * kMostCardLanes + lane)];
  }
  Event carry(const ExchangeLeg& leg, const std::byte* from, std::byte* to);
  void issue(const ExchangeLeg& leg, std::vector<Event>& arrived);

  const int count_;
  std::vector<std::byte> source_;
  std::vector<std::vector<std::byte>> target_;                   // [device]
  std::vector<std::map<int, std::vector<std::byte>>> gathered_;  // [device][to]
  std::vector<std::vector<std::byte>> passing_;                  // [to][from]
  std::vector<int64_t> numbers_;                                 // [from][to]
  std::unique_ptr<Link> link_;
  std::vector<std::unique_ptr<Stream>> out_, in_;  // [device]; [device, lane]
};

}  // namespace pagoda
