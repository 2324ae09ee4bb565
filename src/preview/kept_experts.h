// How many experts of a zebra run those devices keep that attend: at least, since the others hold
// no more, and at most. These are n_min and n_max of HeterMoE's profiler (section 5), by the memory
// plan: experts fit where all that a device has stays on it.
#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.h"
#include "model/model_config.h"
#include "plan/machine/device_budget.h"
#include "plan/machine/model_shape.h"
#include "train/run_setup.h"

namespace pagoda {

// Experts of all layers together; `most`: of each device that attends. Where `least` is above what
// they can hold, experts come and go.
struct KeptExperts {
  int64_t least = 0, most = 0;
  std::string run;  // what they hold for (kept_experts_key)
};

// What the counts depend on beside the sizes of profile_key: layers and experts, a step and its
// sums, the devices that share them and the budget of each, and what zebra was told.
std::string kept_experts_key(const ModelShape& model, const RunSetup& setup,
                             const DeviceBudget& budget);

// `budget`: of the run's devices. Kept experts are taken to be spread over the layers evenly.
// Nothing is counted without zebra. Returns the errors of Session::plan. REQUIRES:
// config.validate(), check_layers(), a run of one process.
Result<KeptExperts> kept_experts(const ModelConfig& model, const RunConfig& config,
                                 const DeviceBudget& budget);

}  // namespace pagoda
