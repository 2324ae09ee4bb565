// Lanes of network cards that are unequally fast. A card has as many lanes as it is times as fast
// as the slowest one, each with an equal part of its rate. In a round of transmissions
// (plan/rounds/transmission_order.h) a lane sends to one other at most and takes from one at most;
// so a card of 40 takes from four of 10 at once.
//
// Each device sends and receives at its card's rate, both at once, behind a switch that never
// blocks. Aurora's Theorem 5.2 states that an all-to-all takes as long as the device that needs
// longest for what it sends, or for what it receives. With one partner at a time it takes longer
// where rates differ: a pair goes at the slower card's rate (link_seconds()), and the faster one
// has nothing to do with the rest. Lanes come near the stated bound: what remains is what rates
// lack of multiples of the slowest one, and what kMostCardLanes cut off. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/rounds/square_matrix.h"

namespace pagoda {

inline constexpr int kMostCardLanes = 4;

struct CardLanes {
  std::vector<int> count;    // [device] from 1 to kMostCardLanes
  std::vector<double> rate;  // [device] of each of its lanes
};

// `card_rates`: [device], above 0, in any unit. As many lanes as come nearest to the slowest rate,
// and at most `most` of a card. REQUIRES: a device; 1 <= most <= kMostCardLanes.
CardLanes card_lanes(std::span<const double> card_rates, int most = kMostCardLanes);

// The least time of an all-to-all in which each device divides what it sends, and what it receives,
// evenly among its lanes: entries of `traffic` over the rates' unit. With one lane each it is
// line_bound() of link_seconds(). REQUIRES: equal sizes; the diagonal counts nowhere. O(n^2).
double lane_bound(const SquareMatrix<double>& traffic, const CardLanes& lanes);

// Several lanes if they lower the bound by so much that more messages at a time are worth it; else
// one each, at the card's rate.
CardLanes worthwhile_lanes(const SquareMatrix<double>& traffic, std::span<const double> card_rates,
                           int most = kMostCardLanes);

// The traffic of devices as traffic between their lanes, of which each device's follow each other:
// no lane sends, or receives, more than the device's part rounded up, so that line_bound() of it is
// that of the device that has most to do by its lanes. Few transmissions are divided: each lane is
// filled before the next one. REQUIRES: as check_traffic(); nothing is on the diagonal.
SquareMatrix<int64_t> between_lanes(const SquareMatrix<int64_t>& traffic,
                                    std::span<const int> count);

}  // namespace pagoda
