// The rules of a run file for pipelines (parallel.layout).
#pragma once

#include "base/status.h"
#include "config/run_config.h"

namespace pagoda {

// Ok, or kUsage with one line that names key, value and remedy. REQUIRES: train.devices are valid.
Status check_pipeline_run(const RunConfig& config);

}  // namespace pagoda
