// Parcels of an all-to-all in Aurora's rounds (plan/rounds/transmission_order.h): in each of them a
// device sends to one other at most and takes from one at most, so that no sender waits for a
// receiver. A parcel may be divided over several rounds. Devices that share a network card count as
// one: what goes from a card to another is their parcels, one behind the other.
//
// Rounds are counted in time. A pair goes at the rate of its slower card, so that a round moves
// other bytes for one pair than for another; with one partner at a time that takes the bound of
// link_seconds() (Aurora, appendix B). Where it pays, a fast card has several partners at a time
// (plan/rounds/card_lanes.h), as the paper's smaller bound wants. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/rounds/card_lanes.h"
#include "plan/rounds/exchange_order.h"

namespace pagoda {

// A part is worth a message: it has so many bytes at least, and this share of what goes in the time
// of the whole, unless its parcel ends with it, or begins behind another of its card. So what a
// card sends to each other one, which ends in a part that may be shorter than its round, takes at
// most (cards - 1) such shares longer than the least there is for it.
inline constexpr int64_t kLeastPartBytes = 1024;
inline constexpr int64_t kMostMessageParts = 64;

// Straight legs: those of a parcel ascend and are the whole of it. Those that come to one lane of a
// device come one behind the other. In turn where each card has one lane. `card_rates`: [device] in
// any unit; empty: all are equally fast. `cards`: [device] the number of its card, of which no
// parcel goes to itself; empty: each has its own. `most_lanes`: of a card. REQUIRES: as
// exchange_legs(). At most 64 + n rounds of O(n^2.5), for n lanes of cards that have parcels.
std::vector<ExchangeLeg> legs_in_rounds(std::span<const ParcelBytes> parcels,
                                        std::span<const double> card_rates = {},
                                        std::span<const int> cards = {},
                                        int most_lanes = kMostCardLanes);

}  // namespace pagoda
