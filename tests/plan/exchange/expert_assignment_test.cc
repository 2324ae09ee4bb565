// Experts on devices by their loads, against all assignments of small cases.
#include "plan/exchange/expert_assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/plan/aurora_baselines.h"

namespace pagoda {
namespace {

double slowest(const std::vector<int>& devices, const std::vector<double>& loads,
               const std::vector<double>& rates) {
  std::vector<double> time(rates.size(), 0);
  for (size_t e = 0; e < loads.size(); ++e) {
    time[static_cast<size_t>(devices[e])] += loads[e] / rates[static_cast<size_t>(devices[e])];
  }
  return *std::max_element(time.begin(), time.end());
}

// Over all devices^experts assignments.
double least_slowest(const std::vector<double>& loads, const std::vector<double>& rates) {
  std::vector<int> devices(loads.size(), 0);
  double least = slowest(devices, loads, rates);
  for (;;) {
    size_t e = 0;
    for (; e < devices.size(); ++e) {
      devices[e] = (devices[e] + 1) % static_cast<int>(rates.size());
      if (devices[e] != 0) break;
    }
    if (e == devices.size()) return least;
    least = std::min(least, slowest(devices, loads, rates));
  }
}

TEST(ExpertAssignment, NearTheBestOfAll) {
  std::mt19937_64 random(31);
  int best = 0;
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<double> loads(1 + random() % 8), rates(2 + random() % 2);
    for (double& load : loads) load = static_cast<double>(random() % 100);
    for (double& rate : rates) rate = 1 + static_cast<double>(random() % 5);
    auto devices = deal_by_load(loads, rates);
    ASSERT_TRUE(devices.ok()) << devices.status().message();
    const double got = slowest(*devices, loads, rates), least = least_slowest(loads, rates);
    const double bound = 2 - 2.0 / static_cast<double>(rates.size() + 1);
    EXPECT_LE(got, bound * least * (1 + 1e-12)) << "trial " << trial << ", seed 31";
    best += got <= least * (1 + 1e-12);
  }
  EXPECT_GT(best, 200) << "most are the best of all";
}

// Theorem 5.1's, where each device has one.
TEST(ExpertAssignment, TheLargestOnTheFastest) {
  const std::vector<double> loads = {30, 100, 60}, rates = {6, 3, 10};
  auto devices = deal_by_load(loads, rates);
  EXPECT_EQ(*devices, (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(*devices, assign_by_load(loads, rates));
  // What nobody chose is shared out by number.
  devices = deal_by_load(std::vector<double>(6, 0), std::vector<double>{2, 1});
  EXPECT_EQ(std::count(devices->begin(), devices->end(), 0), 4);
  EXPECT_EQ(deal_by_load(loads, std::vector<double>{1, 0}).status().code(), Exit::kUsage);
  EXPECT_EQ(deal_by_load(std::vector<double>{-1}, rates).status().code(), Exit::kUsage);
}

// Two layers with experts and one without, on two devices.
RunShape shape_of(int devices) {
  RunShape shape;
  shape.num_layers = 3;
  shape.is_moe = {1, 0, 1};
  shape.num_experts = 4;
  shape.experts_per_token = 2;
  shape.layer_record = {1, 6, 7};
  shape.devices = devices;
  shape.records.push_back({10, -1, -1, 0, 0});
  for (int64_t l = 0; l < 3; ++l) {
    shape.records.push_back({10, l, -1, 0, 0});
    for (int64_t e = 0; e < 4 && l != 1; ++e) {
      shape.records.push_back({100, l, e, static_cast<int>(e % 2), 0});
    }
  }
  shape.records.push_back({10, -1, -1, 0, 0});
  return shape;
}

TEST(ExpertAssignment, HomesByRouting) {
  RoutingTrace trace{{4, 2, 2, {1, 0, 1}}, {}};
  const RunShape shape = shape_of(2);
  const double rates[] = {3, 1};
  EXPECT_EQ(homes_by_routing(shape, trace, rates).status().code(), Exit::kBadData);
  // Two microbatches of one step. Layer 0: 4, 60, 4, 12 tokens in all; layer 2: 0, 0, 0, 80.
  trace.steps = {{1, {{{4, 30, 0, 6}, {}, {0, 0, 0, 40}}, {{0, 30, 4, 6}, {}, {0, 0, 0, 40}}}}};
  auto homes = homes_by_routing(shape, trace, rates);
  ASSERT_TRUE(homes.ok()) << homes.status().message();
  // With one more each. 61 to the fast one, 20.3 s; 13 would make it 24.7 and takes 13 on the slow
  // one; 5 more makes that 18 on the slow and 22 on the fast one, and then 23 and 22.
  EXPECT_EQ(*homes, (std::vector<int>{-1, -1, 1, 0, 0, 1, -1, -1, 1, 1, 1, 0, -1}));
  RunShape moved = shape;
  for (size_t r = 0; r < homes->size(); ++r) {
    if ((*homes)[r] >= 0) moved.records[r].device = (*homes)[r];
  }
  // Before: layer 0 has 8 and 72 tokens, 72 s; layer 2 0 and 80, 80 s. Even: 20 s each.
  EXPECT_DOUBLE_EQ(imbalance(shape, trace, rates), 152.0 / 40);
  // After: layer 0 64 on the fast and 16 on the slow one, 21.3 s; layer 2 80 / 3 s.
  EXPECT_DOUBLE_EQ(imbalance(moved, trace, rates), (64.0 / 3 + 80.0 / 3) / 40);
  EXPECT_EQ(homes_by_routing(shape_of(1), trace, rates).status().code(), Exit::kUsage);
  trace.shape.num_experts = 5;
  EXPECT_EQ(homes_by_routing(shape, trace, rates).status().code(), Exit::kUsage);
}

// A rank with an A100 and a T4, at three quarters of 312 and 65 TFLOP/s, and one with another T4.
TEST(ExpertAssignment, RanksTellTheRatesOfTheirDevices) {
  const std::vector<std::string> texts = {"234 48.75 ", "48.75 "};
  const auto rates = rates_of_ranks(texts, 3);
  ASSERT_TRUE(rates.ok()) << rates.status().message();
  EXPECT_EQ(rates.value(), (std::vector<double>{234, 48.75, 48.75}));
  // The A100 takes six of eight equal experts: it ends four before a T4 ends its first, and six
  // before a T4 would end its second.
  const auto homes = deal_by_load(std::vector<double>(8, 1.0), rates.value());
  ASSERT_TRUE(homes.ok()) << homes.status().message();
  EXPECT_EQ(std::ranges::count(homes.value(), 0), 6);
  for (const std::vector<std::string>& bad : {std::vector<std::string>{"234 48.75 "},
                                              {"234 0 ", "48.75 "},
                                              {"234 x ", "48.75 "},
                                              {"234 48.75 ", "48.75 1 "}}) {
    EXPECT_EQ(rates_of_ranks(bad, 3).status().code(), Exit::kIoError);
  }
}

}  // namespace
}  // namespace pagoda
