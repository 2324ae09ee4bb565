// One step of a plan as a page that needs nothing else: what each stream does when, and how full
// device and host are. Pieces closer than a pixel are drawn as one.
#pragma once

#include <string>

#include "cli/plan_report.h"

namespace pagoda {

// REQUIRES: report.plan.step.
std::string plan_page(const PlanReport& report);

}  // namespace pagoda
