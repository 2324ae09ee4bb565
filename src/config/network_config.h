// What of a configuration says how fast the processes' network cards are (parallel.network_gb_s).
#pragma once

#include <span>

#include "config/run_config.h"

namespace pagoda {

// kUsage unless each is a rate.
Status check_network_rates(const RunConfig& config);

// kUsage unless there is one for each of so many ranks, or none.
Status check_network_ranks(std::span<const double> rates, int ranks);

}  // namespace pagoda
