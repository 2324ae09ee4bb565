// Homes of two models' experts on devices that they share, against all homes of small cases.
#include "plan/exchange/colocated_homes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "plan/exchange/expert_assignment.h"

namespace pagoda {
namespace {

// Layers with so many experts, behind each other; every layer has some.
RunShape shape_of(int devices, int64_t layers, int64_t experts) {
  RunShape shape;
  shape.num_layers = layers;
  shape.is_moe.assign(static_cast<size_t>(layers), 1);
  shape.num_experts = experts;
  shape.experts_per_token = 1;
  shape.devices = devices;
  shape.records.push_back({10, -1, -1, 0, 0});
  for (int64_t l = 0; l < layers; ++l) {
    shape.layer_record.push_back(std::ssize(shape.records));
    shape.records.push_back({10, l, -1, 0, 0});
    for (int64_t e = 0; e < experts; ++e) {
      shape.records.push_back({100, l, e, static_cast<int>(e % devices), 0});
    }
  }
  shape.records.push_back({10, -1, -1, 0, 0});
  return shape;
}

// One step of one microbatch: [layer][expert] tokens.
RoutingTrace trace_of(const std::vector<std::vector<int64_t>>& tokens) {
  RoutingTrace trace;
  trace.shape = {std::ssize(tokens.front()), 1, 1, std::vector<uint8_t>(tokens.size(), 1)};
  trace.steps = {{1, {tokens}}};
  return trace;
}

struct Model {
  RunShape shape;
  RoutingTrace trace;
  double row_s, row_bytes;
  std::vector<double> attends;

  ColocatedModel view() const { return {shape, trace, row_s, row_bytes, attends}; }
};

Model model_of(const std::vector<std::vector<int64_t>>& tokens, double row_s, double row_bytes,
               const std::vector<double>& attends) {
  const auto devices = static_cast<int>(attends.size());
  return {shape_of(devices, std::ssize(tokens), std::ssize(tokens.front())), trace_of(tokens),
          row_s, row_bytes, attends};
}

// [expert] of a layer.
std::vector<int> homes_in(const Model& model, const std::vector<int>& homes, int64_t layer) {
  const auto first = homes.begin() + model.shape.expert(layer, 0);
  return {first, first + model.shape.num_experts};
}

// Experts that are alike in compute and in traffic. Where both hot ones share a device, 7 rows come
// to it in the first all-to-all of both; else 6. By table 2: 22 and 21.
TEST(ColocatedHomes, HotExpertsOnDifferentDevices) {
  const std::vector<double> even = {0.5, 0.5};
  const Model a = model_of({{9, 1}}, 1, 1, even), b = model_of({{3, 1}}, 1, 1, even);
  const std::vector<ServingDevice> devices(2, {1, 1});
  auto homes = colocated_homes(a.view(), b.view(), devices);
  ASSERT_TRUE(homes.ok()) << homes.status().message();
  EXPECT_DOUBLE_EQ(homes->by_speed_s, 22);
  EXPECT_DOUBLE_EQ(homes->together_s, 21);
  const std::vector<int> of_a = homes_in(a, homes->of_a, 0), of_b = homes_in(b, homes->of_b, 0);
  EXPECT_NE(of_a[0], of_a[1]);
  EXPECT_EQ(of_b[0], of_a[1]) << "b's hot expert is where a's cold one is";
  EXPECT_EQ(of_b[1], of_a[0]);
  for (const size_t dense : {size_t{0}, size_t{1}, homes->of_a.size() - 1}) {
    EXPECT_EQ(homes->of_a[dense], -1);
  }
}

// Where computing takes nearly all of the time, each model's hot expert is on the fast device.
TEST(ColocatedHomes, HotExpertsOnTheFastDevice) {
  const std::vector<double> shares = {0.2, 0.8};
  const Model a = model_of({{1, 40}}, 1, 1e-3, shares), b = model_of({{30, 2}}, 1, 1e-3, shares);
  const std::vector<ServingDevice> devices = {{1, 1}, {1, 8}};
  auto homes = colocated_homes(a.view(), b.view(), devices);
  ASSERT_TRUE(homes.ok()) << homes.status().message();
  EXPECT_EQ(homes_in(a, homes->of_a, 0)[1], 1);
  EXPECT_EQ(homes_in(b, homes->of_b, 0)[0], 1);
}

// On equal devices what only one model has is as it would be alone.
TEST(ColocatedHomes, LayersThatMeetNone) {
  const std::vector<double> even = {0.5, 0.5};
  const Model a = model_of({{9, 1, 4, 4}, {5, 30, 2, 1}}, 1, 1, even);
  const Model b = model_of({{3, 1}}, 1, 1, even);
  const std::vector<ServingDevice> devices(2, {1, 1});
  auto homes = colocated_homes(a.view(), b.view(), devices);
  ASSERT_TRUE(homes.ok()) << homes.status().message();
  auto alone = homes_by_routing(a.shape, a.trace, even);
  EXPECT_EQ(homes_in(a, homes->of_a, 1), homes_in(a, *alone, 1));
  const std::vector<int> first = homes_in(a, homes->of_a, 0);
  EXPECT_TRUE(std::all_of(first.begin(), first.end(), [](int d) { return d == 0 || d == 1; }));
}

// The time of a layer of both with these homes, found expert by expert: tokens are in one part for
// each expert, and an expert's rows come from all devices by their shares.
double together_s(const Model& a, std::span<const int> of_a, const Model& b,
                  std::span<const int> of_b, std::span<const ServingDevice> devices) {
  const auto load_of = [&](const Model& model) {
    const auto experts = static_cast<int>(model.shape.num_experts);
    const std::vector<double> none(static_cast<size_t>(experts), 0);
    MoeLayerLoad load{SquareMatrix<double>(experts), none, none, none};
    for (int e = 0; e < experts; ++e) {
      const auto tokens = static_cast<double>(model.trace.steps[0].routing[0][0][e] + 1);
      load.ffn_s[static_cast<size_t>(e)] = tokens * model.row_s;
      for (size_t d = 0; d < devices.size(); ++d) {
        load.traffic_bytes.at(static_cast<int>(d), e) = tokens * model.attends[d] * model.row_bytes;
      }
    }
    return load;
  };
  std::vector<int> parts(of_a.size());
  for (size_t p = 0; p < parts.size(); ++p) parts[p] = static_cast<int>(p % devices.size());
  const MoeLayerLoad load_a = load_of(a), load_b = load_of(b);
  auto phases = colocated_phases({load_a, of_a, parts}, {load_b, of_b, parts}, devices);
  return colocated_times(*phases).gate_a_s;
}

// Over all ways to put each model's experts on devices, one each.
TEST(ColocatedHomes, NearTheBestOfAllPairs) {
  std::mt19937_64 random(17);
  double mean = 0, worst = 0;
  int best = 0;
  constexpr int kTrials = 120;
  for (int trial = 0; trial < kTrials; ++trial) {
    const size_t n = 2 + random() % 3;
    std::vector<ServingDevice> devices;
    std::vector<double> attends;
    for (size_t d = 0; d < n; ++d) {
      const double speed = trial % 2 == 0 ? 1 : static_cast<double>(1 + random() % 3);
      devices.push_back({speed, speed});
      attends.push_back(1.0 / static_cast<double>(n));
    }
    std::vector<int64_t> tokens_a(n), tokens_b(n);
    for (int64_t& tokens : tokens_a) tokens = static_cast<int64_t>(random() % 50);
    for (int64_t& tokens : tokens_b) tokens = static_cast<int64_t>(random() % 50);
    const Model a = model_of({tokens_a}, 0.5, 1, attends);
    const Model b = model_of({tokens_b}, 0.7, 1, attends);
    auto homes = colocated_homes(a.view(), b.view(), devices);
    ASSERT_TRUE(homes.ok()) << homes.status().message();
    const auto of_a = homes_in(a, homes->of_a, 0), of_b = homes_in(b, homes->of_b, 0);
    const double planned = together_s(a, of_a, b, of_b, devices);
    EXPECT_NEAR(planned, homes->together_s, 1e-9 * planned) << "trial " << trial << ", seed 17";
    EXPECT_LE(homes->together_s, homes->by_speed_s * (1 + 1e-12));
    double least = planned;
    std::vector<int> places_a(n);
    std::iota(places_a.begin(), places_a.end(), 0);
    do {
      std::vector<int> places_b(n);
      std::iota(places_b.begin(), places_b.end(), 0);
      do {
        least = std::min(least, together_s(a, places_a, b, places_b, devices));
      } while (std::next_permutation(places_b.begin(), places_b.end()));
    } while (std::next_permutation(places_a.begin(), places_a.end()));
    mean += planned / least / kTrials;
    worst = std::max(worst, planned / least);
    best += planned <= least * (1 + 1e-12);
  }
  std::printf("planned over the best of all: mean %.4f, worst %.3f, best in %d of %d\n", mean,
              worst, best, kTrials);
  EXPECT_LT(mean, 1.005);
  EXPECT_LT(worst, 1.05);
}

TEST(ColocatedHomes, RefusesOtherModelsTraces) {
  const std::vector<double> even = {0.5, 0.5}, one = {1};
  const Model good = model_of({{1, 2}}, 1, 1, even);
  Model other = good;
  other.trace = trace_of({{1, 2, 3}});
  const std::vector<ServingDevice> devices(2, {1, 1});
  const Status of_a = colocated_homes(other.view(), good.view(), devices).status();
  EXPECT_EQ(of_a.code(), Exit::kUsage);
  EXPECT_NE(of_a.message().find("--routing: it was recorded of another model"), std::string::npos);
  const Status of_b = colocated_homes(good.view(), other.view(), devices).status();
  EXPECT_NE(of_b.message().find("--with_routing: it was recorded of another model"),
            std::string::npos);
  other = good;
  other.trace.steps.clear();
  EXPECT_EQ(colocated_homes(good.view(), other.view(), devices).status().code(), Exit::kBadData);
  const Model alone = model_of({{1, 2}}, 1, 1, one);
  const std::vector<ServingDevice> single(1, {1, 1});
  EXPECT_EQ(colocated_homes(alone.view(), alone.view(), single).status().code(), Exit::kUsage);
  EXPECT_EQ(colocated_homes(good.view(), good.view(), std::vector<ServingDevice>(2, {0, 1}))
                .status()
                .code(),
            Exit::kUsage);
}

}  // namespace
}  // namespace pagoda
