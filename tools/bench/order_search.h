// All orders of a zebra step without kept experts, timed: of each kind of device, every order in
// which a chunk's actions follow each other and chunks follow each other within an action of a
// layer. Sums of gradients fix that chunks follow each other, and equal chunks lose nothing by it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/step/zebra_actions.h"
#include "plan/zebra/action_clock.h"

namespace pagoda {

struct TimedOrder {
  ZebraOrders orders;
  double step_s = 0;  // by the clock of actions
};

struct OrderSearch {
  int64_t orders = 0;            // pairs of an attention and an expert order that were timed
  std::vector<TimedOrder> best;  // the fastest first
};

// How many pairs there are; the two numbers are those of standard Young tableaux with as many rows
// as kinds of actions and as many columns as chunks.
double count_orders(int64_t layers, int64_t chunks);

// Times all pairs, and the `most` fastest once more by the clock of actions. REQUIRES: a shape with
// one microbatch a chunk or several, experts in all layers, equal chunks and layers.
OrderSearch search_orders(const RunShape& shape, const ActionTimes& times, size_t most);

// The least time of any order, or of those found when the search grew too long; it does not know
// that chunks follow each other within a layer.
struct LeastTime {
  double step_s = 0;
  bool certain = false;
};
LeastTime least_time(const RunShape& shape, const ActionTimes& times, double bound_s);

}  // namespace pagoda
