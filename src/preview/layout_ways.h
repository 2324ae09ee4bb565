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

// Returns the ways of the layouts that were found, each the fastest of its way, and of those that
// the search has no need of: experts in equal shares, and each kind of devices for itself, whose
// rates are added up (EP (Ideal)), both by search_experts(); and attention and experts on devices
// of their own, one after the other (DistEP), by the settings of the fastest zebra, but with the
// number of attention devices and of kept rows that is best for it. A number of attention devices
// beyond 8 is tried in steps of an eighth. Empty on equal devices. REQUIRES: as for
// search_layouts(), which found `found`.
std::vector<LayoutWay> layout_ways(const ModelSizes& model, std::span<const RunConfig> configs,
                                   const ClusterSheet& cluster, const CoarseLimits& limits,
                                   const LayoutSearch& found);

}  // namespace pagoda
