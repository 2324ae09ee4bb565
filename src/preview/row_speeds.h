// Says how fast a run's devices compute rows of experts, by the sheets of their machines: as a run
// finds that measures it, whatever the run file says of devices. Pure.
#pragma once

#include <span>
#include <vector>

#include "plan/forecast/step_forecast.h"

namespace pagoda {

// [device] of all ranks, over the fastest. REQUIRES: the model has experts; all ranks, in order.
std::vector<double> row_speeds(const ModelShape& model, std::span<const PlannedRank> ranks);

}  // namespace pagoda
