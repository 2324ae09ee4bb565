#include "plan/rounds/exchange_order.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "plan/rounds/exchange_rounds.h"

namespace pagoda {
namespace {

using Kind = ExchangeLeg::Kind;

ExchangeLeg straight(std::span<const ParcelBytes> parcels, size_t i) {
  return {Kind::kStraight, parcels[i].from, parcels[i].to, i, 0, parcels[i].bytes};
}

std::vector<ExchangeLeg> one_by_one(std::span<const ParcelBytes> parcels) {
  std::vector<ExchangeLeg> legs;
  for (size_t i = 0; i < parcels.size(); ++i) legs.push_back(straight(parcels, i));
  return legs;
}

// Links between nodes have rounds of their own, and come first: they are the slower ones.
std::vector<ExchangeLeg> by_rounds(std::span<const ParcelBytes> parcels,
                                   const ExchangeNodes& nodes) {
  std::vector<ExchangeLeg> legs;
  for (const bool within : {false, true}) {
    std::vector<ParcelBytes> some;
    std::vector<size_t> index;  // [of some] among all
    for (size_t i = 0; i < parcels.size(); ++i) {
      if ((nodes.node(parcels[i].from) == nodes.node(parcels[i].to)) != within) continue;
      some.push_back(parcels[i]);
      index.push_back(i);
    }
    for (ExchangeLeg& leg :
         within ? legs_in_rounds(some) : legs_in_rounds(some, nodes.card_rates(), nodes.cards())) {
      leg.parcel = index[leg.parcel];
      leg.in_turn = leg.in_turn && !within;
      legs.push_back(std::move(leg));
    }
  }
  return legs;
}

// How many places behind the sender's the receiver's is, so that all devices of a node, or all
// nodes, that begin with their neighbours send to different ones.
int behind(int from, int to, int count) { return (to - from + count) % count; }

class Halo {
 public:
  Halo(std::span<const ParcelBytes> parcels, const ExchangeNodes& nodes)
      : parcels_(parcels), nodes_(nodes) {
    for (size_t i = 0; i < parcels.size(); ++i) {
      const ParcelBytes& parcel = parcels[i];
      const int from = nodes.node(parcel.from), to = nodes.node(parcel.to);
      if (from == to) {
        straight_.emplace(key_of(0, parcel.from, i), i);
      } else {
        gathered_[{behind(from, to, nodes.count()), parcel.from, to}].push_back(i);
      }
    }
  }

  std::vector<ExchangeLeg> legs() const {
    std::vector<ExchangeLeg> legs;
    std::multimap<Key, ExchangeLeg> passed_on;
    for (const auto& [key, parcels] : gathered_) {
      const auto& [distance, from, node] = key;
      legs.push_back(gather(from, nodes_.counterpart(from, node), parcels));
      add_passed_on(distance, legs.back(), passed_on);
    }
    for (const auto& [key, i] : straight_) legs.push_back(straight(parcels_, i));
    for (const auto& [key, leg] : passed_on) legs.push_back(leg);
    return legs;
  }

 private:
  // How far the node is, how far the device is in it, and the device that sends: those that are as
  // far from their senders go together, to different devices.
  using Key = std::tuple<int, int, int>;

  Key key_of(int node_distance, int from, size_t parcel) const {
    const int to = parcels_[parcel].to;
    const int devices = nodes_.devices(nodes_.node(to));
    return {node_distance, behind(nodes_.place(from), nodes_.place(to), devices), from};
  }
  ExchangeLeg gather(int from, int to, std::span<const size_t> parcels) const {
    ExchangeLeg leg{.kind = Kind::kGathered, .from = from, .to = to};
    leg.ends = false;
    leg.sender = from;
    for (const size_t i : parcels) {
      leg.gathered.push_back({i, align_up(leg.bytes, kGatheredAlign)});
      leg.bytes = leg.gathered.back().first_byte + parcels_[i].bytes;
    }
    return leg;
  }
  void add_passed_on(int distance, const ExchangeLeg& message,
                     std::multimap<Key, ExchangeLeg>& legs) const {
    for (const auto& [i, first_byte] : message.gathered) {
      const ParcelBytes& parcel = parcels_[i];
      legs.emplace(key_of(distance, message.to, i),
                   ExchangeLeg{Kind::kPassedOn, message.to, parcel.to, i, first_byte, parcel.bytes,
                               true, message.sender});
    }
  }

  std::span<const ParcelBytes> parcels_;
  const ExchangeNodes& nodes_;
  std::multimap<Key, size_t> straight_;
  std::map<std::tuple<int, int, int>, std::vector<size_t>> gathered_;  // [distance, device, node]
};

}  // namespace

ExchangeNodes::ExchangeNodes(std::vector<int> node_of_device, std::vector<double> card_rates,
                             std::vector<int> cards)
    : node_(std::move(node_of_device)),
      card_rates_(std::move(card_rates)),
      cards_(std::move(cards)) {
  CHECK(card_rates_.empty() || card_rates_.size() == node_.size());
  CHECK(cards_.empty() || cards_.size() == node_.size());
  first_.clear();
  for (size_t d = 0; d < node_.size(); ++d) {
    CHECK(node_[d] == std::ssize(first_) || node_[d] + 1 == std::ssize(first_),
          "nodes do not ascend");
    if (node_[d] == std::ssize(first_)) first_.push_back(static_cast<int>(d));
  }
  first_.push_back(static_cast<int>(node_.size()));
}

std::vector<ExchangeLeg> exchange_legs(std::span<const ParcelBytes> parcels, ExchangeOrder order,
                                       const ExchangeNodes& nodes) {
  switch (order) {
    case ExchangeOrder::kRounds:
      return by_rounds(parcels, nodes);
    case ExchangeOrder::kHalo:
      return Halo(parcels, nodes).legs();
    default:
      return one_by_one(parcels);
  }
}

int lanes_of_card(ExchangeOrder order, std::span<const double> card_rates, int card) {
  if (order != ExchangeOrder::kRounds || card_rates.empty()) return 1;
  return card_lanes(card_rates).count[static_cast<size_t>(card)];
}

}  // namespace pagoda
