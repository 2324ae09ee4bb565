// Forecasts a step of many ranks from two steps of runs with few layers, where all its tasks would
// take long to simulate. Layers are alike: each takes a stage as much time, memory and bytes as
// another. So a step takes as much longer for each further layer of a stage as the second of the
// two steps does. What is there once (the head, the embedding, the ends of a pipeline) is in both
// steps. All devices, ranks and chunks are simulated, in their number, since what they wait for
// each other does not follow from fewer of them.
//
// Stages of unequal speed have layers in the whole run's ratio, rounded. A step grows with the
// stage that takes longest by Stages::speeds, in the few layers as in all; how long a device
// computes grows with the layers of its stage, and what a rank has, moves and sends with those of
// its stages.
//
// Devices and hosts have so much memory that the same share of layers stays in it; but groups of
// experts are as large as among all layers (plan/memory/group_choice.h), since rows travel in as
// many waves then. A layer without experts counts as one with. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "preview/run_forecast.h"

namespace pagoda {

// Whether few layers tell what stages of so many take. In other orders than breadth-first, a step
// of unequal ones was up to a seventh longer than few told: the stage with the head may take
// longest among few layers, and another among all.
bool tell_all(PipelineOrder order, std::span<const int64_t> stage_layers);

// Whether at most an eighth of the layers has no experts, and all attend.
bool has_alike_layers(const ModelShape& model);

// The model with so many layers, all with experts. REQUIRES: has_alike_layers(model.shape).
ModelSizes with_layers(ModelSizes model, int64_t layers);

// [stage] its layers in the first of the two runs, of so many in the whole; in the second it has
// twice as many. They are one of the stage with the fewest, or without stages two. Where experts
// are copies it is one more: their sums go on behind what is computed, by some layers. REQUIRES:
// each stage has a layer.
std::vector<int64_t> few_layers(std::span<const int64_t> whole, bool copies);

// In zebra, has all layers leave as many experts where attention is: the mean of what the run's
// layers with experts do, rounded. Else, or where one number is for all, nothing changes.
void offload_alike(const ModelShape& model, RunConfig& config);

// Makes the second run's step that of all layers, which is `further` times as far from the first's
// as the second's is, and no shorter than a resource is busy. kUsage: the second's is no longer
// than the first's, or what follows is shorter than operations allow, or by far than a resource is
// busy: fewer layers may page more than their part of all does. REQUIRES: `second` has the
// operations of all layers.
Status continue_step(const StepForecast& first, double further, RanksForecast& second);

// Makes StepForecast::device_busy_s of the second run that of all layers: a device's grows with the
// layers of its stage. few: [stage] layers of the first run, of which the second has twice as many.
// REQUIRES: `second` has the stage_layers of all.
void continue_devices(const StepForecast& first, std::span<const int64_t> few,
                      RanksForecast& second);

// What is said of peaks and drawn of the step is the second run's. Of configs with unequal layers
// offload_alike() is forecast. The errors of forecast_ranks and continue_step(). REQUIRES: as
// those; has_alike_layers(), and more layers than both runs.
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
