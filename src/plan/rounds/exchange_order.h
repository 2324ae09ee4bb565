// The order in which the parcels of an all-to-all travel, in which parts, and over which devices. A
// device sends one after the other and takes what comes for it one after the other, so the order
// says who waits for whom. Which bytes come to whom in the end is the same in any order. Pure.
//
// - kFlat: as the parcels stand. Where they stand receiver by receiver, all senders wait for the
//   first receiver to take one after the other.
// - kRounds: Aurora's rounds (plan/rounds/exchange_rounds.h), in each of which a device sends to
//   one other at most and takes from one at most. A parcel may be divided over several rounds.
//   Links within nodes and links between them have rounds of their own, which go on side by side.
//   Those within are taken to be equally fast. Those between are as fast as the slower of the two
//   network cards, and a card that is faster than others may have several partners at a time. Where
//   devices share a card, the card is what has one partner at a time.
// - kHalo: HALO's three phases (Piper, section V). A device gathers its parcels for the devices of
//   another node and sends them as one message to its counterpart there, the device with the same
//   place in its node; meanwhile parcels of a node go straight to their devices; and counterparts
//   pass on what has come. As many bytes leave a node as without it, in fewer and larger messages,
//   and each device of a node uses its own network card. Parcels may be of any sizes, and nodes of
//   any numbers of devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagoda {

enum class ExchangeOrder : uint8_t { kFlat, kRounds, kHalo };

// What one device sends to another in an all-to-all.
struct ParcelBytes {
  int from = 0, to = 0;  // devices, not the same
  int64_t bytes = 0;     // above 0
};

// The devices that exchange rows with each other, which of these share a node, which a network
// card, and how fast the card of each is.
class ExchangeNodes {
 public:
  ExchangeNodes() = default;  // one node
  // [device] the number of its node, from 0 on and ascending, so that a node's are neighbours; and
  // its card's rate, in any unit, and number. No rates: all are equally fast; no numbers: each has
  // its own.
  explicit ExchangeNodes(std::vector<int> node_of_device, std::vector<double> card_rates = {},
                         std::vector<int> cards = {});

  int count() const { return static_cast<int>(first_.size()) - 1; }
  int node(int device) const { return node_.empty() ? 0 : node_[static_cast<size_t>(device)]; }
  int devices(int node) const {
    return first_[static_cast<size_t>(node) + 1] - first_[static_cast<size_t>(node)];
  }
  // The place of a device in its node, from 0 on.
  int place(int device) const { return device - first_[static_cast<size_t>(node(device))]; }
  // The device of the node that takes what the device sends to all of them: that with its place, or
  // where the node has fewer, the places taken in turns.
  int counterpart(int device, int node) const {
    return first_[static_cast<size_t>(node)] + place(device) % devices(node);
  }
  std::span<const double> card_rates() const { return card_rates_; }  // [device]; empty: alike
  std::span<const int> cards() const { return cards_; }  // [device]; empty: each has its own

 private:
  std::vector<int> node_;            // [device]; empty: all are of one
  std::vector<int> first_ = {0, 0};  // [node] its first device, and the number of devices
  std::vector<double> card_rates_;
  std::vector<int> cards_;
};

// A message, or what a device keeps of one that has come.
struct ExchangeLeg {
  enum class Kind : uint8_t {
    kStraight,  // bytes [first_byte, + bytes) of a parcel, to its device
    kGathered,  // several parcels, from their device to its counterpart in their devices' node
    // The parcel that the gathered message of `sender` has from first_byte on, to its device; where
    // `from` and `to` are one, it has come already.
    kPassedOn,
  };
  struct Gathered {
    size_t parcel = 0;
    int64_t first_byte = 0;  // in the message, a multiple of kGatheredAlign
  };
  Kind kind = Kind::kStraight;
  int from = 0, to = 0;  // devices
  size_t parcel = 0;     // its index; kStraight, kPassedOn
  int64_t first_byte = 0, bytes = 0;
  bool ends = true;  // all of the parcel is at its device then; kStraight, kPassedOn
  int sender = 0;
  std::vector<Gathered> gathered = {};
  int lane = 0;  // of the receiver; what comes by different ones comes side by side
  // It waits at both cards until the legs before it that do are through, or nearly: rounds between
  // nodes, where no card has several partners at a time.
  bool in_turn = false;
};
inline constexpr int64_t kGatheredAlign = 64;

// The legs of all parcels in their order. Straight ones of a parcel ascend, and are the whole of
// it; a parcel that is gathered is passed on behind that. REQUIRES: at most one parcel from a
// device to another; all bytes together are below 2^53; kHalo, or with card rates: `nodes` know all
// devices. kFlat and kHalo: O(n log n) for n parcels. kRounds: as legs_in_rounds().
std::vector<ExchangeLeg> exchange_legs(std::span<const ParcelBytes> parcels, ExchangeOrder order,
                                       const ExchangeNodes& nodes = {});

// The most lanes by which legs come to a device whose card's rate is card_rates[card]: one but for
// kRounds with unequal cards.
int lanes_of_card(ExchangeOrder order, std::span<const double> card_rates, int card);

}  // namespace pagoda
