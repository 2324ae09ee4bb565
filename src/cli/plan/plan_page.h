// Writes the page of `pagoda plan --html` (cli/plan/timeline_page.h): one step of a run on a
// machine or of the best layout on a cluster, with each stream's work over time and the memory in
// use on rank 0.
#pragma once

#include <string>

#include "cli/plan/plan_report.h"
#include "cli/plan/search_report.h"

namespace pagoda {

// REQUIRES: report.plan.step.
std::string plan_page(const PlanReport& report);

// REQUIRES: report.layouts.runs. Its first is drawn, of a cluster's part the part.
std::string layout_page(const SearchReport& report);

}  // namespace pagoda
