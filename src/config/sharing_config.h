// What of a configuration says how devices share experts (parallel.sharing, parallel.hidden_shares,
// parallel.copies).
#pragma once

#include "config/run_config.h"

namespace pagoda {

// kUsage if a run cannot share its experts so: data without sums by shards; model without hidden
// shares, hidden shares without it, and what needs whole experts. REQUIRES: RunConfig::sums().
Status check_sharing(const RunConfig& config);

// kUsage if parallel.copies do not go with what else is asked for. REQUIRES: memory.pin is valid.
Status check_expert_copies(const RunConfig& config);
// kMismatch if they need other sums than the run has. REQUIRES: RunConfig::sums().
Status check_copied_sums(const RunConfig& config);

}  // namespace pagoda
