// Plans a cluster of equal nodes as equal copies of one run: each has as many of the nodes, the
// whole model, and as many of a step's rows. One of them is planned and simulated by the tasks that
// `train` runs (preview/layout_search.h). What copies exchange is added by a formula, as if none of
// it went beside other work. The tasks of a run take less, since sums of experts travel beside what
// is computed. So clusters are planned of more devices than a run has (kMostDevices), or than can
// be simulated soon.
//
// The homes of each record's elements are spread evenly over the copies (RunConfig::equal_copies):
// a copy keeps the gradients and states of its part, and makes the updates of these. The sums of
// gradients that the others have of the part come there in fp32 and are added, and the weights go
// back. Each message leaves behind the one before. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "preview/layout_search.h"

namespace pagoda {

struct EqualCopies {
  int64_t count = 1;
  int64_t devices = 0;  // of each
  double sums_s = 0;    // what copies exchange in a step
  // A step of all copies, if each has the layout that was simulated.
  double step_s = 0, tokens_per_s = 0, mfu = 0;
  const char* bottleneck = "";  // what takes longest: a resource's name, or "sums"

  std::string text() const;
};

struct DividedCluster {
  EqualCopies copies;
  LayoutSearch found;  // layouts of one copy by itself; the first is that of all
};

// How long the copies take for each other's sums, and for the weights that go back: as long as the
// rank of a copy that is home to most. `one`: what planned_ranks() makes of a copy's rank 0;
// `part`: its nodes.
double seconds_between_copies(const PlannedRun& one, const ClusterSheet& part, int64_t count);

// Divides the cluster into equal copies: into the fewest of which each is a run, and into more
// while that is faster. Returns the divisions that were tried and of which a layout fits, with the
// fastest in front. `whole`: the settings of a run on all nodes. REQUIRES: cluster.equal_nodes(), a
// microbatch that is a number, and what search_layouts() does.
std::vector<DividedCluster> divide_cluster(const ModelSizes& model, const RunConfig& whole,
                                           const ClusterSheet& cluster, const CoarseLimits& limits);

}  // namespace pagoda
