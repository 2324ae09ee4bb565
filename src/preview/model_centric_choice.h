// Says whether a run would be faster if each of its devices had a part of every expert
// (parallel.sharing = model; HEXA-MoE 3.3). The parts determine bits, so that a plan recommends
// them, and nothing chooses them for a run. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "preview/run_forecast.h"

namespace pagoda {

// Nine of ten steps on several devices were simulated with a smaller error
// (tools/bench/results/device_check.txt).
inline constexpr double kForecastError = 0.1;

struct ModelCentricChoice {
  std::vector<std::string> hidden_shares;  // the devices', by their speed at experts
  double step_s = 0;                       // of the run with them
  double gain = 0;  // relative gain in tokens a second over the run as it is, planned as coarsely

  std::string text() const;  // one line
};

// The parts with which the run gains more than kForecastError. nullopt: it gains less, has them
// already, has one device or more than sixteen, has no room for them, or cannot have them, as in
// zebra. configs: [rank] its settings. REQUIRES: as for forecast_ranks; `model` has whole experts.
std::optional<ModelCentricChoice> recommend_model_centric(const ModelSizes& model,
                                                          std::span<const RunConfig> configs,
                                                          const ClusterSheet& cluster,
                                                          const CoarseLimits& limits);

}  // namespace pagoda
