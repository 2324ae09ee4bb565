// Ways of using a cluster of unequal devices, each at its best, beside each other: those that
// HeterMoE compares zebra with (section 6.1), and pipelines. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "preview/layout_search.h"

namespace pagoda {

struct LayoutWay {
  std::string name;      // "experts in equal shares (EP)"
  double step_s = 0;     // simulated; 0: there is none that fits
  std::string settings;  // of its run; empty: none, or a bound that no run reaches
};

// Returns the ways of the layouts that were found, and of those that the search has no need of: in
// equal shares; each kind of devices for itself, whose rates are added up (EP (Ideal)); and
// attention and experts on the devices of the fastest zebra, but one after the other (DistEP).
// Empty on equal devices. REQUIRES: as for search_layouts(), which found `found`.
std::vector<LayoutWay> layout_ways(const ModelSizes& model, std::span<const RunConfig> configs,
                                   const ClusterSheet& cluster, const CoarseLimits& limits,
                                   const LayoutSearch& found);

}  // namespace pagoda
