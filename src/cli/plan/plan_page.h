// What `pagoda plan --html` writes (cli/plan/timeline_page.h): one step of a run on a machine, what
// each stream does when and how full device and host are; or one step of the best strategy to train
// on a cluster, by stages or streams, and how full their devices are.
#pragma once

#include <string>

#include "cli/plan/plan_report.h"
#include "cli/plan/search_report.h"
#include "plan/search/strategy_timeline.h"

namespace pagoda {

// REQUIRES: report.plan.step.
std::string plan_page(const PlanReport& report);

// REQUIRES: report.strategies, whose first the timeline is of.
std::string strategy_page(const SearchReport& report, const StrategyTimeline& timeline);

}  // namespace pagoda
