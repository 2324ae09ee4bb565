// What to change about a cluster or the tokens of a step, each change tried by a search of its own
// (plan/search/cluster_search.h): what makes a model fit that does not, what makes a step faster
// that does. Pure.
#pragma once

#include <string>
#include <vector>

#include "plan/search/cluster_search.h"

namespace pagoda {

struct ClusterChange {
  std::string text;  // "train.tokens_per_step = 524288"
  std::string strategy;  // the best one with it
  double tokens_per_s = 0;
  double gain = 0;  // of tokens a second
};

// Twice the tokens, the network, the links inside nodes, the device memory, the nodes: those that
// gain a fiftieth against `best`, most first. Five searches.
std::vector<ClusterChange> cluster_helps(const ModelShape& model, const ClusterSheet& cluster,
                                         const StepDemand& demand, const Strategy& best);

// Single changes with which a strategy fits, the smallest of each kind: fewer tokens a step
// (halves), more nodes like those there are (one more at a time up to twice as many, then doublings
// up to 64; of two kinds as many more of each), larger devices (doublings up to 16 times). Gains
// are 0.
std::vector<ClusterChange> cluster_fits_with(const ModelShape& model, const ClusterSheet& cluster,
                                             const StepDemand& demand);

}  // namespace pagoda
