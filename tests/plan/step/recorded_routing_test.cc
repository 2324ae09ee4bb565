// Orders of all-to-alls, placement and migration on routing that a real run recorded
// (tests/golden/routing_shakespeare.txt): what the planner promises of drawn loads holds there too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

#include "base/bytes.h"
#include "plan/exchange/expert_migration.h"
#include "plan/exchange/routed_traffic.h"
#include "plan/rounds/traffic.h"
#include "plan/rounds/transmission_order.h"
#include "plan/step/expert_seats.h"
#include "tests/testing/plan/aurora_baselines.h"
#include "tests/testing/plan/recorded_layers.h"

namespace pagoda {
namespace {

struct RecordedLayer {
  int64_t step = 0, layer = 0;
  LayerRouting routing;
  std::vector<int64_t> tokens;  // [expert]
};

std::vector<RecordedLayer> recorded() {
  const RoutingTrace trace = golden_routing();
  std::vector<RecordedLayer> layers;
  for (const RoutedStep& step : trace.steps) {
    for (int64_t l = 0; l < static_cast<int64_t>(trace.shape.is_moe.size()); ++l) {
      if (!trace.shape.is_moe[static_cast<size_t>(l)]) continue;
      const LayerRouting routing = layer_routing(step.routing, l);
      layers.push_back({step.step, l, routing, tokens_per_expert(routing)});
    }
  }
  return layers;
}

ExpertDevices in_order(size_t experts, int32_t devices) {
  ExpertDevices at;
  for (size_t e = 0; e < experts; ++e) {
    at.push_back(static_cast<int32_t>(e * static_cast<size_t>(devices) / experts));
  }
  return at;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

int64_t busiest(const RecordedLayer& layer, const ExpertDevices& at, int32_t devices) {
  const std::vector<int64_t> loads = device_loads(layer.tokens, at, devices);
  return *std::max_element(loads.begin(), loads.end());
}

TEST(RecordedRouting, IsWholeAndSkewed) {
  const RoutingTrace trace = golden_routing();
  EXPECT_EQ(trace.shape, (RoutedShape{64, 2, 8, {1, 1, 1, 1}}));
  EXPECT_EQ(trace.steps.size(), 4u);
  for (const RecordedLayer& layer : recorded()) {
    EXPECT_EQ(sum(layer.tokens), 2 * 2048) << layer.step;
    for (const std::vector<int64_t>& tokens : layer.routing) EXPECT_EQ(sum(tokens), 2 * 256);
    EXPECT_GT(*std::max_element(layer.tokens.begin(), layer.tokens.end()), 2 * 64) << layer.step;
  }
}

// A microbatch on each of 8 devices: whole rows, so that the bound is met exactly.
TEST(RecordedRouting, OrdersMeetTheBound) {
  constexpr int32_t kDevices = 8;
  const std::vector<double> bandwidth(kDevices, 1);
  double shortest = 0, random = 0;
  const std::vector<RecordedLayer> layers = recorded();
  for (const RecordedLayer& layer : layers) {
    const SquareMatrix<double> rows =
        routed_traffic(layer.routing, in_order(64, kDevices), kDevices).take();
    SquareMatrix<int64_t> whole(kDevices);
    for (int i = 0; i < kDevices; ++i) {
      for (int j = 0; j < kDevices; ++j) {
        whole.at(i, j) = static_cast<int64_t>(rows.at(i, j));
        ASSERT_EQ(static_cast<double>(whole.at(i, j)), rows.at(i, j));
      }
    }
    auto order = transmission_order(whole);
    ASSERT_TRUE(order.ok());
    const int64_t bound = line_bound(whole);
    EXPECT_EQ(order_duration(*order), bound);
    const auto seed = static_cast<uint64_t>(layer.step * 10 + layer.layer);
    const double sjf = *queued_seconds(rows, bandwidth, shortest_first(rows));
    const double rcs = *queued_seconds(rows, bandwidth, random_sending_order(kDevices, seed));
    // The time is a sum of at most 56 steps, each rounded.
    EXPECT_GE(std::min(sjf, rcs), static_cast<double>(bound) * (1 - 1e-13));
    shortest += sjf / static_cast<double>(bound) / static_cast<double>(layers.size());
    random += rcs / static_cast<double>(bound) / static_cast<double>(layers.size());
  }
  std::printf("recorded, 8 devices, over the bound: SJF %.3f, random %.3f\n", shortest, random);
}

// At most 1.05 of the mean or, where that is more, of the hottest expert; and half of what experts
// in order are above that.
TEST(RecordedRouting, PlacementIsBalanced) {
  for (const int32_t devices : {4, 8}) {
    double longest_excess = 0, order_excess = 0;
    for (const RecordedLayer& layer : recorded()) {
      const double mean = static_cast<double>(sum(layer.tokens)) / devices;
      const auto hottest = static_cast<double>(
          *std::max_element(layer.tokens.begin(), layer.tokens.end()));
      const std::vector<double> speeds(static_cast<size_t>(devices), 1.0);
      const auto ends = [&](const std::vector<int>& seats) {
        return busiest_device(layer.tokens, seats, speeds);
      };
      const double reached = ends(place_longest_first(layer.tokens, speeds));
      EXPECT_LE(reached, 1.05 * std::max(mean, hottest)) << layer.step << " " << layer.layer;
      EXPECT_LE(ends(place_balanced(layer.tokens, speeds)), reached);
      if (hottest > mean) continue;
      longest_excess += reached / mean - 1;
      order_excess +=
          static_cast<double>(busiest(layer, in_order(64, devices), devices)) / mean - 1;
    }
    std::printf("recorded, 64 experts on %d: longest first above the mean by %.4f of the layers' "
                "sum, in order %.4f\n", devices, longest_excess, order_excess);
    EXPECT_LE(longest_excess, order_excess / 2);
  }
}

// No assignment of as many experts to each device has a busiest one below the mean, in whole
// tokens, nor below the hottest expert with the coldest others.
int64_t least_busiest(const RecordedLayer& layer, int32_t devices) {
  std::vector<int64_t> tokens = layer.tokens;
  std::sort(tokens.begin(), tokens.end());
  const auto others = static_cast<int64_t>(tokens.size()) / devices - 1;
  const int64_t hottest =
      std::accumulate(tokens.begin(), tokens.begin() + others, tokens.back());
  return std::max(div_ceil(sum(layer.tokens), devices), hottest);
}

// Within 0.2 % of the lower bound on average; and from one step's loads for the next one still
// better than experts in order.
TEST(RecordedRouting, MigrationComesCloseAndLasts) {
  constexpr int32_t kDevices = 8;
  const ExpertDevices start = in_order(64, kDevices);
  double any = 0, next = 0, next_in_order = 0;
  int pairs = 0;
  const std::vector<RecordedLayer> layers = recorded();
  for (const RecordedLayer& layer : layers) {
    const auto bound = static_cast<double>(least_busiest(layer, kDevices));
    const ExpertDevices at =
        balance_by_swaps(layer.tokens, start, kDevices).take().device_of_expert;
    any += static_cast<double>(busiest(layer, at, kDevices)) / bound;
    for (const RecordedLayer& later : layers) {
      if (later.step != layer.step + 1 || later.layer != layer.layer) continue;
      next += static_cast<double>(busiest(later, at, kDevices)) / bound;
      next_in_order += static_cast<double>(busiest(later, start, kDevices)) / bound;
      ++pairs;
    }
  }
  const auto count = static_cast<double>(layers.size());
  std::printf("recorded, 64 experts on 8, over the bound %.5f; in the next step %.3f, in order "
              "%.3f\n",
              any / count, next / pairs, next_in_order / pairs);
  EXPECT_LE(any / count, 1.002);
  ASSERT_EQ(pairs, 8);
  EXPECT_LT(next, next_in_order);
}

}  // namespace
}  // namespace pagoda
