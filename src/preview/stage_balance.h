// Layers for the stages of a pipeline on unequal devices, by what a forecast says that each stage
// does (HeterMoE, section 6.3: faster GPUs are assigned more layers). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "preview/run_forecast.h"

namespace pagoda {

// [stage] layers in proportion to those that a stage takes in a second of its busiest device.
// REQUIRES: each stage is busy.
std::vector<int64_t> layers_by_time(const RanksForecast& forecast);

// [stage] with a layer of the stage that is busy longest at the one that is busy least. {}: that
// stage has no other.
std::vector<int64_t> one_layer_moved(const RanksForecast& forecast);

}  // namespace pagoda
