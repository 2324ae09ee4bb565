// Forecasts a step of many ranks from two steps of runs with few layers, where all its tasks would
// take long to simulate. Layers are alike: each takes as much time, memory and bytes as another,
// and stages of equal layers as much as each other. So a step takes as much longer for each further
// layer of a stage as the second of the two steps does. What is there once (the head, the
// embedding, the ends of a pipeline) is in both steps. All devices, ranks and chunks are simulated,
// in their number, since what they wait for each other does not follow from fewer of them.
//
// Devices and hosts have so much memory that the same share of layers stays in it; but groups of
// experts are as large as among all layers (plan/memory/group_choice.h), since rows travel in as
// many waves then. A layer without experts counts as one with; where stages have unequal numbers of
// layers, all have the most. Pure.
#pragma once

#include <span>

#include "preview/run_forecast.h"

namespace pagoda {

// Whether at most an eighth of the layers has no experts, and all attend.
bool has_alike_layers(const ModelShape& model);

// The model with so many layers, all with experts. REQUIRES: has_alike_layers(model.shape).
ModelSizes with_layers(ModelSizes model, int64_t layers);

// The layers of each of the two runs, in all stages: one and two of each stage, or without stages
// two and four. REQUIRES: stages > 0.
struct FewLayers {
  int64_t fewer = 0, more = 0;
};
FewLayers few_layers(int64_t stages);

// In zebra, has all layers leave as many experts where attention is: the mean of what the run's
// layers with experts do, rounded. Else, or where one number is for all, nothing changes.
void offload_alike(const ModelShape& model, RunConfig& config);

// What is said of peaks and drawn of the step is the second run's. Of configs with unequal layers
// offload_alike() is forecast. The errors of forecast_ranks.
// REQUIRES: as that; has_alike_layers(), and a stage that has more layers than the second run.
Result<RanksForecast> forecast_few_layers(const ModelSizes& model,
                                          std::span<const RunConfig> configs,
                                          const ClusterSheet& cluster, const CoarseLimits& limits);
// The same of what planned_ranks() has made of all layers.
Result<RanksForecast> forecast_few_layers(const ModelSizes& model,
                                          std::span<const RunConfig> configs,
                                          const ClusterSheet& cluster,
                                          std::vector<PlannedRun> whole,
                                          const CoarseLimits& limits);

}  // namespace pagoda
