// The rules of a run file for zebra (parallel.layout).
#pragma once

#include "base/status.h"
#include "config/run_config.h"

namespace pagoda {

// Ok, or one line that names key, value and remedy: kUsage, and kMismatch for too few train.chunks,
// which a checkpoint fixes. REQUIRES: train.devices are valid.
Status check_zebra_run(const RunConfig& config);

}  // namespace pagoda
