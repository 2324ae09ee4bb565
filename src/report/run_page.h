// One page of HTML about one or several runs: losses, rates, where time went, and how experts were
// loaded, over their steps. It has no scripts and loads nothing, so it can be kept and sent. Pure.
#pragma once

#include <string>
#include <vector>

#include "report/run_history.h"

namespace pagoda {

// REQUIRES: at least one run.
std::string run_page(const std::vector<RunHistory>& runs);

}  // namespace pagoda
