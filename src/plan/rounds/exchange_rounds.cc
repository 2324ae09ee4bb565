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

// [device] its number among those that have parcels
std::map<int, int> numbers_of(std::span<const ParcelBytes> parcels) {
  std::map<int, int> number;
  for (const ParcelBytes& parcel : parcels) {
    number.emplace(parcel.from, 0);
    number.emplace(parcel.to, 0);
  }
  int next = 0;
  for (auto& [device, of] : number) of = next++;
  return number;
}

// Devices count by those numbers.
class Rounds {
 public:
  Rounds(std::span<const ParcelBytes> parcels, std::span<const double> card_rates, int most_lanes);
  std::vector<ExchangeLeg> legs();

 private:
  // How many times as fast as the slowest lane a lane of both ends is.
  double speed(int from, int to) const {
    return std::min(lanes_.rate[from], lanes_.rate[to]) / slowest_;
  }
  // Bytes that parts between these two are multiples of, or all of their parcel; units take the
  // same time for all pairs.
  int64_t unit_bytes(int from, int to) const {
    const double all = bytes_.at(from, to) + kPartAlign;
    const double unit = std::min(static_cast<double>(unit_) * speed(from, to), all);
    return static_cast<int64_t>(unit) / kPartAlign * kPartAlign;
  }
  int64_t unit_of_slowest() const;
  SquareMatrix<int64_t> units() const;
  void add(const TransmissionRound<int64_t>& round);

  const std::span<const ParcelBytes> parcels_;
  SquareMatrix<double> bytes_;
  SquareMatrix<int64_t> parcel_;  // its index; -1: there is none
  CardLanes lanes_;
  double slowest_ = 1;               // rate of a lane
  int64_t unit_ = 0;                 // bytes
  std::vector<int> device_, place_;  // [lane of all] whose it is, and which of its
  std::vector<int64_t> sent_;        // [parcel] bytes
  std::vector<ExchangeLeg> legs_;
  // The newest legs: [lane of all] that it sends, and that it receives; [parcel].
  std::vector<size_t> leaving_, arriving_, newest_;
  std::vector<int> round_;  // [parcel] of its newest leg's newest bytes
  int rounds_ = 0;
};

Rounds::Rounds(std::span<const ParcelBytes> parcels, std::span<const double> card_rates,
               int most_lanes)
    : parcels_(parcels),
      sent_(parcels.size(), 0),
      newest_(parcels.size(), kNone),
      round_(parcels.size(), -1) {
  const std::map<int, int> number = numbers_of(parcels);
  const auto devices = static_cast<int>(number.size());
  bytes_ = SquareMatrix<double>(devices);
  parcel_ = SquareMatrix<int64_t>(devices, -1);
  for (size_t i = 0; i < parcels.size(); ++i) {
    const int from = number.at(parcels[i].from), to = number.at(parcels[i].to);
    CHECK(from != to && parcel_.at(from, to) < 0, "two parcels go from %d to %d", parcels[i].from,
          parcels[i].to);
    bytes_.at(from, to) = static_cast<double>(parcels[i].bytes);
    parcel_.at(from, to) = static_cast<int64_t>(i);
  }
  std::vector<double> rates;
  for (const auto& [device, of] : number) {
    rates.push_back(card_rates.empty() ? 1 : card_rates[static_cast<size_t>(device)]);
  }
  lanes_ = worthwhile_lanes(bytes_, rates, most_lanes);
  slowest_ = *std::min_element(lanes_.rate.begin(), lanes_.rate.end());
  for (int device = 0; device < devices; ++device) {
    for (int place = 0; place < lanes_.count[device]; ++place) {
      device_.push_back(device);
      place_.push_back(place);
    }
  }
  leaving_.assign(device_.size(), kNone);
  arriving_ = leaving_;
  unit_ = unit_of_slowest();
}

int64_t Rounds::unit_of_slowest() const {
  const int devices = bytes_.size();
  std::vector<int64_t> sent(devices, 0), received(devices, 0);  // as if all were as slow
  for (int i = 0; i < devices; ++i) {
    for (int j = 0; j < devices; ++j) {
      if (i == j) continue;
      const auto slow = static_cast<int64_t>(std::ceil(bytes_.at(i, j) / speed(i, j)));
      sent[i] += slow;
      received[j] += slow;
    }
  }
  int64_t most = 0;  // of a lane
  for (int d = 0; d < devices; ++d) {
    most = std::max(most, div_ceil(std::max(sent[d], received[d]), lanes_.count[d]));
  }
  return align_up(std::max(kLeastPartBytes, div_ceil(most, kMostMessageParts)), kPartAlign);
}

SquareMatrix<int64_t> Rounds::units() const {
  SquareMatrix<int64_t> units(parcel_.size());
  for (int from = 0; from < units.size(); ++from) {
    for (int to = 0; to < units.size(); ++to) {
      if (parcel_.at(from, to) < 0) continue;
      const int64_t bytes = parcels_[static_cast<size_t>(parcel_.at(from, to))].bytes;
      units.at(from, to) = div_ceil(bytes, unit_bytes(from, to));
    }
  }
  return units;
}

// A pair may stay together from round to round, and what several lanes of both ends carry at a time
// is one message.
void Rounds::add(const TransmissionRound<int64_t>& round) {
  for (const Transmission<int64_t>& of : round.transmissions) {
    const int from = device_[of.sender], to = device_[of.receiver];
    const auto i = static_cast<size_t>(parcel_.at(from, to));
    const int64_t bytes = std::min(of.amount * unit_bytes(from, to), parcels_[i].bytes - sent_[i]);
    size_t &leaves = leaving_[of.sender], &arrives = arriving_[of.receiver];
    const bool stays = leaves == newest_[i] && arrives == newest_[i];
    if (newest_[i] == kNone || !(stays || round_[i] == rounds_)) {
      leaves = arrives = newest_[i] = legs_.size();
      ExchangeLeg& leg = legs_.emplace_back();
      leg.from = parcels_[i].from;
      leg.to = parcels_[i].to;
      leg.parcel = i;
      leg.first_byte = sent_[i];
      leg.lane = place_[of.receiver];
    }
    ExchangeLeg& leg = legs_[newest_[i]];
    leg.bytes += bytes;
    sent_[i] += bytes;
    leg.ends = sent_[i] == parcels_[i].bytes;
    round_[i] = rounds_;
  }
  ++rounds_;
}

std::vector<ExchangeLeg> Rounds::legs() {
  const auto rounds = transmission_order(between_lanes(units(), lanes_.count));
  CHECK(rounds.ok(), "%s", rounds.status().message().c_str());
  for (const TransmissionRound<int64_t>& round : rounds.value()) add(round);
  return std::move(legs_);
}

}  // namespace

std::vector<ExchangeLeg> legs_in_rounds(std::span<const ParcelBytes> parcels,
                                        std::span<const double> card_rates, int most_lanes) {
  if (parcels.empty()) return {};
  return Rounds(parcels, card_rates, most_lanes).legs();
}

}  // namespace pagoda
