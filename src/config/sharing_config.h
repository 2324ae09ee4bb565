// What of a configuration says how devices share experts (parallel.sharing,
// parallel.hidden_shares).
#pragma once

#include "config/run_config.h"

namespace pagoda {

// kUsage if a run cannot share its experts so: data without sums by shards; model without hidden
// shares, hidden shares without it, and what needs whole experts. REQUIRES: RunConfig::sums().
Status check_sharing(const RunConfig& config);

}  // namespace pagoda
