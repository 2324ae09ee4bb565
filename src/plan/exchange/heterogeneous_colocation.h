// Places two models on n unequal devices, an expert of each on every device (Aurora section 7):
// pairs the experts of a with those of b, and the pairs with devices, so that the slowest device is
// as fast as possible. This is a three-dimensional matching, which is NP-hard. Pure.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "plan/exchange/colocation.h"
#include "plan/exchange/inference_time.h"

namespace pagoda {

// The work of a device for one expert; seconds are those of a device of speed 1.
struct ExpertDemand {
  double gate_s = 0, ffn_s = 0, aggregate_s = 0;
  ExpertTraffic bytes;
};

// [expert]. REQUIRES: a load that device_phases() accepts.
std::vector<ExpertDemand> expert_demands(const MoeLayerLoad& layer);

// The weight of a triple: the last time of table 2 for the work of this device alone, which sends
// and receives at its own bandwidth. (With the smaller bandwidth of both ends the weight would
// depend on the places of all others, and there would be no matching; colocated_phases() counts
// both ends.)
double colocated_device_s(const ExpertDemand& a, const ExpertDemand& b,
                          const ServingDevice& device);

struct HeterogeneousColocation {
  std::vector<int> device_of_a, device_of_b;  // [expert]: two permutations
  double slowest_s = 0;                       // the largest colocated_device_s()
};

// The paper's heuristic: makes pairs by colocate() without regard to devices, then assigns pairs to
// devices by bottleneck matching. plan/exchange/place_swaps.h goes on from there. O(n^2 sqrt(n)
// log(n)). kUsage without devices, for unequal counts, and for invalid amounts and rates.
Result<HeterogeneousColocation> decoupled_colocation(std::span<const ExpertDemand> a,
                                                     std::span<const ExpertDemand> b,
                                                     std::span<const ServingDevice> devices);

}  // namespace pagoda
