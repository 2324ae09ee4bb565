// Says whether a run would be faster if its devices shared experts in another way of HEXA-MoE's
// (section 3.3): data-centric, where weights travel to rows that would have more bytes, for which
// an expert's gradient must be summed by shards (train.expert_shards); or model-centric, where each
// device has a part of every expert (parallel.sharing = model), in proportion to its speed at rows
// by its machine's sheet. Both determine bits, so that a plan recommends them, and nothing chooses
// them for a run. Pure.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "preview/run_forecast.h"

namespace pagoda {

// Nine of ten steps on several devices were simulated with a smaller error
// (tools/bench/results/device_check.txt).
inline constexpr double kForecastError = 0.1;

struct SharingChoice {
  // What the run file has then: "parallel.sharing", "\"model\"".
  std::vector<std::pair<std::string, std::string>> settings;
  double step_s = 0;  // of the run with them
  double gain = 0;    // relative gain in tokens a second over the run as it is, planned as coarsely

  std::string text() const;  // one line
};

// The ways with which the run gains more than kForecastError, the fastest first. Left out are those
// that the run has already, have no room, or cannot be, as either in zebra; none are tried on one
// device or on more than sixteen. configs: [rank] its settings. REQUIRES: as for forecast_ranks;
// `model` has whole experts unless the run is model-centric.
std::vector<SharingChoice> recommend_sharing(const ModelSizes& model,
                                             std::span<const RunConfig> configs,
                                             const ClusterSheet& cluster,
                                             const CoarseLimits& limits);

}  // namespace pagoda
