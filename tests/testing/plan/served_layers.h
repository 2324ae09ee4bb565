// What Aurora's plans gain over its baselines (section 8.1), for layers from anywhere, drawn or
// recorded, and with a part of the traffic planned for replaced by other traffic (section 8, Q4).
// Places of experts are planned from the traffic that is expected; the order of an all-to-all from
// what is there, for it is known before it is sent.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "plan/exchange/inference_time.h"

namespace pagoda {

// A layer; equal draws give the same one. All have as many experts, one a device.
using LayerSource = std::function<MoeLayerLoad(uint64_t draw)>;

// Ratios of some trials.
struct Speedup {
  double mean = 0, least = std::numeric_limits<double>::infinity(), most = 0;
  int count = 0;
  void note(double ratio);
};

struct ServedSpeedups {
  // Equal devices, one model: the order by SJF, and a random one (RCS), over the planned order.
  Speedup sjf, rcs;
  // Two models on equal devices, over planned pairs: random pairs (REC); both models by themselves
  // on half of the devices each, packed by Lina, in planned or in random order; pairs planned
  // without the noise over those planned with it.
  Speedup rec, lina, lina_rcs, pairs_loss;
  // Two devices each of four kinds, over planned places: random devices (RGA) of one model, random
  // devices and pairs of two; places planned without the noise over those planned with it.
  Speedup rga, rga_rec, places_loss, both_loss;
  // Shares of the time in which equal devices compute: one model, two.
  Speedup busy_alone, busy_together;
};

// noise: the part of the planned traffic that is replaced by the mean of three other layers.
// REQUIRES: 8 experts.
ServedSpeedups served_speedups(const LayerSource& layers, double noise, int trials);

}  // namespace pagoda
