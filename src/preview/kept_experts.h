// How many experts of a zebra run those devices keep that attend: at least, since the others hold
// no more, and at most. These are n_min and n_max of HeterMoE's profiler (section 5), by the memory
// plan: experts fit where all that a device has stays on it.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "model/model_config.h"

namespace pagoda {

// Experts of all layers together; `most`: of each device that attends. Where `least` is above what
// they can hold, experts come and go.
struct KeptExperts {
  int64_t least = 0, most = 0;
};

// Kept experts are taken to be spread over the layers evenly. Both are 0 without zebra. Returns the
// errors of Session::plan. REQUIRES: config.validate(), a run of one process.
Result<KeptExperts> kept_experts(const ModelConfig& model, const RunConfig& config);

}  // namespace pagoda
