// What a run would gain from other homes of its experts, and from another order of its all-to-alls,
// if it routed its tokens as a recorded run did (plan/step/routing_trace.h): steps are simulated
// with recorded routing, under homes that follow from the steps recorded before them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/forecast/step_forecast.h"
#include "plan/step/routing_trace.h"
#include "preview/model_sizes.h"

namespace pagoda {

// Homes of all layers' experts.
struct RoutedHomes {
  std::string name;
  // When the busiest device has computed its rows, at seats and as guests, over when all would have
  // at the same time: the mean of layers and steps, by the time that a row takes on a device by its
  // machine's sheet. 1 is the least.
  double imbalance = 0;
  double step_s = 0;  // the mean of the steps
  // Against the run's own homes: experts that move to other devices, and the time of those that
  // move to other ranks, with weights and states, in one all-to-all for each layer (Piper, Table
  // IV). Within a rank no byte moves.
  int64_t moved_experts = 0;
  double move_s = 0;
};

// All-to-alls of a step under the run's own homes, one layer after the other, if nothing else held
// up the ends: devices or, with several ranks, network cards, of which each GPU has its own and the
// CPU devices of a rank share one. Each sends what it has for the others one behind the other, and
// ends that send to the same one share it. Rows that guests compute stay where they are
// (plan/step/expert_seats.h), weights go without an order, and of several ranks what stays within
// one takes no time.
struct RoutedExchange {
  double in_order_s = 0;  // by the numbers of the receivers, as with parallel.exchange = flat
  double shortest_first_s = 0;
  // In Aurora's rounds, which meet the bound of all orders with one partner at a time
  // (plan/rounds/transmission_order.h).
  double rounds_s = 0;
};

struct RoutedForecast {
  int64_t recorded_steps = 0;
  int64_t learnt_steps = 0;          // homes follow from the first of them
  std::vector<int64_t> tried_steps;  // those that were simulated
  std::vector<RoutedHomes> homes;    // the run's own first
  bool seats_by_step = false;        // experts are computed where their rows say, within a rank
  RoutedExchange exchange;

  // Steps after which moving to these homes has paid; 0: it costs nothing; -1: it never pays.
  int64_t pays_after(const RoutedHomes& homes) const;
};

// How fast the links are that rows and moved experts take.
struct RoutedLink {
  Cost network;            // of a transfer between ranks, by byte; none: one rank
  // The rate of the link of a device or, with several ranks, of a network card, each way. Orders of
  // all-to-alls go by a rank's own, where its sheet has one.
  double bytes_per_s = 0;
};

// kUsage where the trace is that of another model or other microbatches, or the run has one device,
// stages, parts of experts, or zebra's layout, whose homes are its search's; kBadData where it has
// no whole step. The errors of forecast_step.
Result<RoutedForecast> forecast_routed(const ModelSizes& model, std::vector<PlannedRank> ranks,
                                       const RoutedLink& link, const RoutingTrace& trace);

}  // namespace pagoda
