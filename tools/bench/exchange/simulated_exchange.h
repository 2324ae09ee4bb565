// The simulator's time of an all-to-all by itself: for programs that hold it against executed ones.
#pragma once

#include <span>
#include <vector>

#include "plan/machine/machine_profile.h"
#include "plan/rounds/exchange_order.h"

namespace pagoda {

// Seconds until all legs have come, over plan/forecast/simulated_network.h. Each device has a card
// for its own node and one for the others, by which a message takes so long, and lanes as in a run.
// Copies take no time. `between`: [device].
double simulated_exchange_s(std::span<const ExchangeLeg> legs, const ExchangeNodes& nodes,
                            const Cost& within, std::span<const Cost> between);

}  // namespace pagoda
