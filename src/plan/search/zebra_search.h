// The part of the search for two kinds of nodes (plan/search/node_pair_search.h) that lays out
// zebra groups: one, or several as stages of a pipeline, as copies, or as both
// (plan/search/zebra_layout.h), each with some experts given to attention devices
// (plan/zebra/asym_ea.h). Pure.
//
// First every layout is timed with the experts that Algorithm 1 moves, or that must move, and with
// two choices of lags. Then, the fastest first, Asym-EA is searched from Algorithm 1 and all lags
// are tried, and after that from as many experts in each layer, until kMostZebraTasks tasks were
// timed. A layout whose lower bound of time (zebra_least_s) is not among the best of all strategies
// is not timed; that does not change the best ones that are returned.
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/search/cluster_search.h"
#include "plan/search/zebra_layout.h"

namespace pagoda {

// The most microbatches of a copy in all chunks together; powers of two of both are tried.
inline constexpr int32_t kMostZebraMicrobatches = 32;

// Every layout that divides devices, experts and sequences; send_again is not set.
std::vector<ZebraLayout> zebra_layouts(const ModelShape& model, const NodePair& kinds,
                                       const ClusterDemand& demand);

// Adds to `strategies` the zebras that fit and may be among the best of all strategies.
// `peak_flops_s`: model flops over the peak of all devices. O(layouts x states) bounds, O(layouts)
// plans of O(layers x microbatches) tasks, and then as many plans as kMostZebraTasks allow.
inline constexpr int64_t kMostZebraTasks = 4'000'000;
inline constexpr size_t kBestStrategies = 20;
void search_zebras(const ModelShape& model, const ModelCost& cost, const ClusterSheet& cluster,
                   const NodePair& kinds, const ClusterDemand& demand, double peak_flops_s,
                   std::vector<Strategy>& strategies);

// The layout of a strategy of kZebra.
ZebraLayout layout_of(const Strategy& strategy);

}  // namespace pagoda
