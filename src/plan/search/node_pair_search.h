// The part of the search (plan/search/cluster_search.h) for clusters with two kinds of nodes: zebra
// groups (plan/search/zebra_search.h) and the strategies that HeterMoE compares them with, expert
// parallelism and disaggregated experts also in several copies; and HEXA-MoE's sharing. Every place
// and format of states. Pure.
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/search/cluster_search.h"

namespace pagoda {

// How many microbatches of pipelines of whole layers are tried: powers of two up to this.
inline constexpr int32_t kMostPipelineMicrobatches = 32;
// Into how many parts an all-to-all is divided where experts and transfers overlap.
inline constexpr int32_t kMostParts = 8;

// How a step of one of them runs. Its errors.
Result<StrategyTimeline> node_pair_timeline(const ModelShape& model, const ClusterSheet& cluster,
                                            const StepDemand& demand, const Strategy& strategy);

// Unordered; of zebra layouts those that may be among the best. kUsage: other than two kinds,
// layers without experts. kDoesNotFit: no strategy does.
Result<std::vector<Strategy>> search_node_pair(const ModelShape& model, const ClusterSheet& cluster,
                                               const StepDemand& demand);

}  // namespace pagoda
