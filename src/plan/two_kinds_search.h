// The part of the search (plan/cluster_search.h) for clusters with two kinds of nodes: zebra groups
// and the ways that HeterMoE compares them with. Pure.
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/cluster_search.h"
#include "plan/unequal_step.h"

namespace pagoda {

// One step's work on both kinds, for `demand` tokens, all layers alike: what plan/unequal_step.h
// simulates. REQUIRES: a model all of whose layers have experts.
UnequalStep unequal_step(const ModelShape& model, const ClusterSheet& cluster,
                         const TwoKinds& kinds, const StepDemand& demand);

// How many microbatches are tried: powers of two up to this.
inline constexpr int32_t kMostZebraMicrobatches = 32;

// Unordered. kUsage: other than two kinds, layers without experts. kDoesNotFit: no way does.
Result<std::vector<SearchedWay>> search_two_kinds(const ModelShape& model,
                                                  const ClusterSheet& cluster,
                                                  const StepDemand& demand);

}  // namespace pagoda
