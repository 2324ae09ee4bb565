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

// The lines for the log.
std::vector<std::string> plan_report(const ModelConfig& config, const SessionOptions& options,
                                     const MemoryPlan& memory, const RunOutlook& outlook = {});

}  // namespace pagoda
