// The part of the search (plan/search/cluster_search.h) for clusters with two kinds of nodes: zebra
// groups (plan/search/zebra_search.h), the strategies that HeterMoE compares them with (expert
// parallelism and disaggregated experts also in several copies), and HEXA-MoE's sharing, with every
// place and format of states. Pure.
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/search/cluster_search.h"
#include "plan/search/strategy_timeline.h"

namespace pagoda {

// The most microbatches that are tried for pipelines of whole layers; powers of two are.
inline constexpr int32_t kMostPipelineMicrobatches = 32;
// The most parts of an all-to-all in which experts and transfers overlap.
inline constexpr int32_t kMostParts = 8;

// The timeline of a step of one of these strategies. Returns the strategy's errors.
Result<StrategyTimeline> node_pair_timeline(const ModelShape& model, const ClusterSheet& cluster,
                                            const ClusterDemand& demand, const Strategy& strategy);

// Returns the strategies unordered, and only those zebra layouts that may be among the best.
// kUsage: other than two kinds, layers without experts. kDoesNotFit: no strategy fits.
Result<std::vector<Strategy>> search_node_pair(const ModelShape& model, const ClusterSheet& cluster,
                                               const ClusterDemand& demand);

// Seconds of a step of EP (Ideal) (plan/zebra/heterogeneous_step.h), whatever memory it takes:
// HeterMoE compares with it, and no run can be it. kUsage as above.
Result<double> ideal_parallel_s(const ModelShape& model, const ClusterSheet& cluster,
                                const ClusterDemand& demand);

}  // namespace pagoda
