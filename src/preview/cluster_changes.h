// Tries changes of a cluster or of the tokens of a step, each planned anew: those that make a model
// fit which does not, and those that make a step faster which does. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/machine/machine_sheet.h"

namespace pagoda {

struct ClusterDemand {
  int64_t sequence_len = 0;  // tokens
  int64_t sequences = 0;     // sequences of a step, all devices together
};

struct PlannedCluster {
  std::string text;  // the layout
  double tokens_per_s = 0;
};
// Plans a step on a cluster; none: nothing fits.
using ClusterPlanner =
    std::function<std::optional<PlannedCluster>(const ClusterSheet&, const ClusterDemand&)>;

struct ClusterChange {
  std::string text;  // "train.tokens_per_step = 524288"
  std::string layout;
  double tokens_per_s = 0;
  double gain = 0;  // relative gain in tokens a second
};

// Tries twice the tokens, the network, the links inside nodes, the device memory, and the nodes.
// Returns the changes that gain a fiftieth or more over `tokens_per_s`, the largest gain first.
// Plans five times.
std::vector<ClusterChange> cluster_helps(const ClusterPlanner& plan, const ClusterSheet& cluster,
                                         const ClusterDemand& demand, double tokens_per_s);

// Single changes with which something fits, the smallest of each kind: fewer tokens a step
// (halves), more nodes of the same make (one more at a time up to twice as many, then doublings up
// to 64; with two kinds, the same multiple of both), larger devices (doublings up to 16 times).
// Gains are 0.
std::vector<ClusterChange> cluster_fits_with(const ClusterPlanner& plan,
                                             const ClusterSheet& cluster,
                                             const ClusterDemand& demand);

}  // namespace pagoda
