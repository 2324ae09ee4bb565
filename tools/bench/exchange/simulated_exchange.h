// The simulator's time of an all-to-all by itself: for programs that hold it against executed ones,
// or print what an order of one brings.
#pragma once

#include <cstdint>
#include <span>

#include "plan/machine/machine_profile.h"
#include "plan/rounds/exchange_order.h"
#include "tools/bench/exchange/card_network.h"

namespace pagoda {

// Seconds until all legs have come, over plan/forecast/simulated_network.h. Each device has a card
// for its own node and one for the others, by which a message takes so long, and lanes as in a run.
// Copies take no time. `between`: [device].
double simulated_exchange_s(std::span<const ExchangeLeg> legs, const ExchangeNodes& nodes,
                            const Cost& within, std::span<const Cost> between);
// The same over cards that are alike.
double simulated_exchange_s(std::span<const ExchangeLeg> legs, const CardNetwork& network);

// An all-to-all in which each device has a parcel for each other one. Parcels stand receiver by
// receiver, which is the order that kFlat leaves them in.
struct EvenExchange {
  double seconds = 0;
  // Parts of these in which the card of a device sends to other nodes, and the one within its own.
  double between = 0, within = 0;
};
EvenExchange simulate_even_exchange(const CardNetwork& network, ExchangeOrder order,
                                    int64_t parcel_bytes);

}  // namespace pagoda
