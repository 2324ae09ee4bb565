// A layout that is planned and not yet simulated: what each rank does, and whether steps of a few
// layers (preview/few_layers.h) are to tell what a step takes. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "preview/layout_search.h"

namespace pagoda {

// The largest simulation that is made, some seconds, and the largest that is made many times.
inline constexpr int64_t kMostParcels = 15'000, kFewParcels = 2'000;

// About how many parcels of rows are exchanged in a pass: each chunk has one from each device of a
// copy of a stage to each other. Coarse runs have at least four experts, whatever the devices, and
// each copy computes as many as all copies have homes.
int64_t parcels(int64_t layers, const RunConfig& config);

int64_t simulated_layers(const ModelShape& model, const RunConfig& config);

// Few layers tell what zebra in stages takes for the fewest chunks, breadth-first; in other orders,
// or with more chunks, they were a fifth off.
bool may_be_few(const ModelShape& model, const RunConfig& config);

// What each rank does, before it is simulated.
struct PlannedLayout {
  std::vector<RunConfig> configs;  // [rank]
  std::vector<PlannedRun> ranks;
  bool few = false;   // to be simulated by few layers
  bool told = false;  // few layers tell what all take
};

// The errors of planned_ranks. REQUIRES: as for it.
Result<PlannedLayout> plan_layout(const ModelSizes& model, std::vector<RunConfig> configs,
                                  const ClusterSheet& cluster);
// The errors of forecast_ranks.
Result<SearchedLayout> forecast_planned(const ModelSizes& model, PlannedLayout layout,
                                        const ClusterSheet& cluster, const CoarseLimits& limits);

}  // namespace pagoda
