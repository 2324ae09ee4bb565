#include "plan/rounds/exchange_rounds.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "plan/rounds/transmission_order.h"

namespace pagoda {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);
constexpr int64_t kPartAlign = 64;

int card_of(int device, std::span<const int> cards) {
  return cards.empty() ? device : cards[static_cast<size_t>(device)];
}

// [card] its number among those that have parcels
std::map<int, int> numbers_of(std::span<const ParcelBytes> parcels, std::span<const int> cards) {
  std::map<int, int> number;
  for (const ParcelBytes& parcel : parcels) {
    number.emplace(card_of(parcel.from, cards), 0);
    number.emplace(card_of(parcel.to, cards), 0);
  }
  int next = 0;
  for (auto& [card, of] : number) of = next++;
  return number;
}

// Cards count by those numbers.
class Rounds {
 public:
  Rounds(std::span<const ParcelBytes> parcels, std::span<const double> card_rates,
         std::span<const int> cards, int most_lanes);
  std::vector<ExchangeLeg> legs();

 private:
  // What goes from a card to another.
  struct Pair {
    std::vector<size_t> parcels;
    size_t next = 0;    // of `parcels`, that is not all sent
    int64_t bytes = 0;  // of all, where each begins at a multiple of kPartAlign
  };
  Pair& pair(int from, int to) { return pairs_[static_cast<size_t>(from * bytes_.size() + to)]; }
  void add_parcels(const std::map<int, int>& number, std::span<const int> cards);
  // How many times as fast as the slowest lane a lane of both ends is.
  double speed(int from, int to) const {
    return std::min(lanes_.rate[from], lanes_.rate[to]) / slowest_;
  }
  // Bytes that parts between these two are multiples of, or all that goes there; units take the
  // same time for all pairs.
  int64_t unit_bytes(int from, int to) const {
    const double all = bytes_.at(from, to) + kPartAlign;
    const double unit = std::min(static_cast<double>(unit_) * speed(from, to), all);
    return static_cast<int64_t>(unit) / kPartAlign * kPartAlign;
  }
  int64_t unit_of_slowest() const;
  SquareMatrix<int64_t> units() const;
  void add(const TransmissionRound<int64_t>& round);
  void add(size_t parcel, int64_t bytes, const Transmission<int64_t>& of);

  const std::span<const ParcelBytes> parcels_;
  SquareMatrix<double> bytes_;
  std::vector<Pair> pairs_;  // [from, to]
  CardLanes lanes_;
  double slowest_ = 1;             // rate of a lane
  int64_t unit_ = 0;               // bytes
  std::vector<int> card_, place_;  // [lane of all] whose it is, and which of its
  std::vector<int64_t> sent_;      // [parcel] bytes
  std::vector<ExchangeLeg> legs_;
  // The newest legs: [lane of all] that it sends, and that it receives; [parcel].
  std::vector<size_t> leaving_, arriving_, newest_;
  std::vector<int> round_;  // [parcel] of its newest leg's newest bytes
  int rounds_ = 0;
};

Rounds::Rounds(std::span<const ParcelBytes> parcels, std::span<const double> card_rates,
               std::span<const int> cards, int most_lanes)
    : parcels_(parcels),
      sent_(parcels.size(), 0),
      newest_(parcels.size(), kNone),
      round_(parcels.size(), -1) {
  const std::map<int, int> number = numbers_of(parcels, cards);
  std::vector<double> rates(number.size(), 1);
  for (const ParcelBytes& parcel : parcels) {
    for (const int device : {parcel.from, parcel.to}) {
      if (card_rates.empty()) continue;
      rates[static_cast<size_t>(number.at(card_of(device, cards)))] =
          card_rates[static_cast<size_t>(device)];
    }
  }
  add_parcels(number, cards);
  lanes_ = worthwhile_lanes(bytes_, rates, most_lanes);
  slowest_ = *std::min_element(lanes_.rate.begin(), lanes_.rate.end());
  for (int card = 0; card < bytes_.size(); ++card) {
    for (int place = 0; place < lanes_.count[card]; ++place) {
      card_.push_back(card);
      place_.push_back(place);
    }
  }
  leaving_.assign(card_.size(), kNone);
  arriving_ = leaving_;
  unit_ = unit_of_slowest();
}

void Rounds::add_parcels(const std::map<int, int>& number, std::span<const int> cards) {
  bytes_ = SquareMatrix<double>(static_cast<int>(number.size()));
  pairs_.resize(number.size() * number.size());
  for (size_t i = 0; i < parcels_.size(); ++i) {
    const ParcelBytes& parcel = parcels_[i];
    const int from = number.at(card_of(parcel.from, cards));
    const int to = number.at(card_of(parcel.to, cards));
    CHECK(from != to, "a parcel from %d to %d leaves no card", parcel.from, parcel.to);
    Pair& both = pair(from, to);
    for (const size_t other : both.parcels) {
      const bool again = parcels_[other].from == parcel.from && parcels_[other].to == parcel.to;
      CHECK(!again, "two parcels go from %d to %d", parcel.from, parcel.to);
    }
    both.parcels.push_back(i);
    both.bytes = align_up(both.bytes, kPartAlign) + parcel.bytes;
    bytes_.at(from, to) = static_cast<double>(both.bytes);
  }
}

int64_t Rounds::unit_of_slowest() const {
  const int cards = bytes_.size();
  std::vector<int64_t> sent(cards, 0), received(cards, 0);  // as if all were as slow
  for (int i = 0; i < cards; ++i) {
    for (int j = 0; j < cards; ++j) {
      if (i == j) continue;
      const auto slow = static_cast<int64_t>(std::ceil(bytes_.at(i, j) / speed(i, j)));
      sent[i] += slow;
      received[j] += slow;
    }
  }
  int64_t most = 0;  // of a lane
  for (int c = 0; c < cards; ++c) {
    most = std::max(most, div_ceil(std::max(sent[c], received[c]), lanes_.count[c]));
  }
  return align_up(std::max(kLeastPartBytes, div_ceil(most, kMostMessageParts)), kPartAlign);
}

SquareMatrix<int64_t> Rounds::units() const {
  SquareMatrix<int64_t> units(bytes_.size());
  for (int from = 0; from < units.size(); ++from) {
    for (int to = 0; to < units.size(); ++to) {
      const auto bytes = static_cast<int64_t>(bytes_.at(from, to));
      if (bytes > 0) units.at(from, to) = div_ceil(bytes, unit_bytes(from, to));
    }
  }
  return units;
}

// A pair's parcels are filled one after the other.
void Rounds::add(const TransmissionRound<int64_t>& round) {
  for (const Transmission<int64_t>& of : round.transmissions) {
    const int from = card_[of.sender], to = card_[of.receiver];
    Pair& both = pair(from, to);
    int64_t room = of.amount * unit_bytes(from, to);
    while (room > 0 && both.next < both.parcels.size()) {
      const size_t i = both.parcels[both.next];
      const int64_t bytes = std::min(room, parcels_[i].bytes - sent_[i]);
      add(i, bytes, of);
      room -= align_up(bytes, kPartAlign);
      if (sent_[i] == parcels_[i].bytes) ++both.next;
    }
  }
  ++rounds_;
}

// A pair may stay together from round to round, and what several lanes of both ends carry at a time
// is one message.
void Rounds::add(size_t parcel, int64_t bytes, const Transmission<int64_t>& of) {
  size_t &leaves = leaving_[of.sender], &arrives = arriving_[of.receiver];
  size_t& newest = newest_[parcel];
  const bool stays = leaves == newest && arrives == newest;
  if (newest == kNone || !(stays || round_[parcel] == rounds_)) {
    leaves = arrives = newest = legs_.size();
    ExchangeLeg& leg = legs_.emplace_back();
    leg.from = parcels_[parcel].from;
    leg.to = parcels_[parcel].to;
    leg.parcel = parcel;
    leg.first_byte = sent_[parcel];
    leg.lane = place_[of.receiver];
    leg.in_turn = std::ssize(card_) == bytes_.size();
  }
  ExchangeLeg& leg = legs_[newest];
  leg.bytes += bytes;
  sent_[parcel] += bytes;
  leg.ends = sent_[parcel] == parcels_[parcel].bytes;
  round_[parcel] = rounds_;
}

std::vector<ExchangeLeg> Rounds::legs() {
  const auto rounds = transmission_order(between_lanes(units(), lanes_.count));
  CHECK(rounds.ok(), "%s", rounds.status().message().c_str());
  for (const TransmissionRound<int64_t>& round : rounds.value()) add(round);
  return std::move(legs_);
}

}  // namespace

std::vector<ExchangeLeg> legs_in_rounds(std::span<const ParcelBytes> parcels,
                                        std::span<const double> card_rates,
                                        std::span<const int> cards, int most_lanes) {
  if (parcels.empty()) return {};
  return Rounds(parcels, card_rates, cards, most_lanes).legs();
}

}  // namespace pagoda
