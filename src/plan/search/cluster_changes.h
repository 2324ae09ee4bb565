// Tries changes of a cluster or of the tokens of a step, each by a search of its own
// (plan/search/cluster_search.h): those that make a model fit which does not, and those that make a
// step faster which does. Pure.
#pragma once

#include <string>
#include <vector>

#include "plan/search/cluster_search.h"

namespace pagoda {

struct ClusterChange {
  std::string text;  // "train.tokens_per_step = 524288"
  std::string strategy;  // the best strategy with the change
  double tokens_per_s = 0;
  double gain = 0;  // relative gain in tokens a second
};

// Tries twice the tokens, the network, the links inside nodes, the device memory, and the nodes.
// Returns the changes that gain a fiftieth or more over `best`, the largest gain first. Takes five
// searches.
std::vector<ClusterChange> cluster_helps(const ModelShape& model, const ClusterSheet& cluster,
                                         const ClusterDemand& demand, const Strategy& best);

// Single changes with which a strategy fits, the smallest of each kind: fewer tokens a step
// (halves), more nodes of the same make (one more at a time up to twice as many, then doublings up
// to 64; with two kinds, the same multiple of both), larger devices (doublings up to 16 times).
// Gains are 0.
std::vector<ClusterChange> cluster_fits_with(const ModelShape& model, const ClusterSheet& cluster,
                                             const ClusterDemand& demand);

}  // namespace pagoda
