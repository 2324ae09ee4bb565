// Two models on n unequal devices, an expert of each on every device (Aurora section 7): which
// expert of b shares a device with which of a, and which pair gets which device, so that the
// slowest device is as fast as possible. A three-dimensional matching, NP-hard. Planned only: it is
// tested, and neither a run nor `pagoda plan` uses it yet.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/exchange/colocation.h"
#include "plan/exchange/inference_time.h"

namespace pagoda {

// What one expert's device has to do for it; seconds are those of a device of speed 1.
struct ExpertDemand {
  double gate_s = 0, ffn_s = 0, aggregate_s = 0;
  ExpertTraffic bytes;
};

// [expert]. REQUIRES: a load that device_phases() accepts.
std::vector<ExpertDemand> expert_demands(const MoeLayerLoad& layer);

// The weight of a triple: the end of table 2 with what happens on this device alone, which sends
// and receives at its own bandwidth. (With the smaller bandwidth of both ends it would depend on
// where all others are, and no matching could be had; colocated_phases() knows that.)
double colocated_device_s(const ExpertDemand& a, const ExpertDemand& b,
                          const ServingDevice& device);

struct HeterogeneousColocation {
  std::vector<int> device_of_a, device_of_b;  // [expert]: two permutations
  double slowest_s = 0;                       // the largest colocated_device_s()
};

// The paper's heuristic: pairs as colocate() makes them whatever the devices, then pairs to devices
// by bottleneck matching. O(n^2 sqrt(n) log(n)).
// kUsage without devices, for unequal counts, amounts and rates that make no sense.
Result<HeterogeneousColocation> decoupled_colocation(std::span<const ExpertDemand> a,
                                                     std::span<const ExpertDemand> b,
                                                     std::span<const ServingDevice> devices);

// For more time a lower slowest_s: two of device, a's and b's experts stay together and the third
// is matched anew, in turn, until none of the three makes the slowest device faster. From the
// heuristic's solution and from `restarts` drawn ones; the best, the first of equals. slowest_s is
// never above decoupled_colocation()'s, and was the least of all in each of 346 drawn instances of
// 4 to 6 devices (tests/plan/exchange/colocation_test.cc). The inference time that counts both ends
// of every transmission is another matter: it was 4 % longer for it on average, so
// plan/exchange/place_swaps.h does better to start from decoupled_colocation(). O(n^2 sqrt(n)
// log(n)) a match; of each three matches of a start but the last, one at least lowers slowest_s to
// another of n^3 values. The same seed draws the same. kUsage also for restarts < 0.
Result<HeterogeneousColocation> rematched_colocation(std::span<const ExpertDemand> a,
                                                     std::span<const ExpertDemand> b,
                                                     std::span<const ServingDevice> devices,
                                                     int restarts, uint64_t seed);

}  // namespace pagoda
