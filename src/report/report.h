// The lines that a run prints before it starts: parameters, what every tier will hold, what will
// page and move.
#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "report/traffic_report.h"
#include "train/session.h"

namespace pagoda {

// Warns, with the reason, when the CPU computes although there is a GPU, and when GPUs are unlike.
void warn_of_gpus(const RunConfig& config);

// "groups of up to 16 blocks of 256 rows, 8 of them in flight on each device"; one device has no
// more than one.
std::string groups_text(int64_t blocks, int64_t in_flight);

// The lines for the log. `options` are with_groups() of the plan.
std::vector<std::string> plan_report(const ModelConfig& config, const SessionOptions& options,
                                     const MemoryPlan& memory, const RunOutlook& outlook = {});

}  // namespace pagoda
