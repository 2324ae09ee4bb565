// Inference times by hand, and what planning gains over the baselines, with traffic that is known
// and traffic that is not (papers: Aurora).
#include "plan/exchange/inference_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "plan/rounds/traffic.h"
#include "tests/testing/plan/aurora_baselines.h"
#include "tests/testing/plan/random_traffic.h"
#include "tests/testing/plan/served_layers.h"

namespace pagoda {
namespace {

// Experts 0 and 1; part 0 of the tokens has 6 bytes for expert 1, part 1 has 2 for expert 0.
MoeLayerLoad two_experts() {
  MoeLayerLoad layer;
  layer.traffic_bytes = SquareMatrix<double>(2);
  layer.traffic_bytes.at(0, 1) = 6;
  layer.traffic_bytes.at(1, 0) = 2;
  layer.traffic_bytes.at(1, 1) = 100;  // stays
  layer.gate_s = {1, 2};
  layer.ffn_s = {4, 8};
  layer.aggregate_s = {1, 3};
  return layer;
}

TEST(DevicePhases, DivideBySpeedAndTheSlowerLink) {
  const MoeLayerLoad layer = two_experts();
  const std::vector<ServingDevice> devices = {{2, 1}, {3, 2}};
  const std::vector<int> same = {0, 1}, swapped = {1, 0}, together = {0, 0};
  auto phases = device_phases({layer, same}, devices);
  ASSERT_TRUE(phases.ok()) << phases.status().message();
  EXPECT_EQ(phases->gate_s, (std::vector<double>{1, 1}));
  EXPECT_EQ(phases->ffn_s, (std::vector<double>{4, 4}));
  EXPECT_EQ(phases->aggregate_s, (std::vector<double>{1, 1.5}));
  EXPECT_EQ(phases->all_to_all_s, (std::vector<double>{3, 3}));  // 6 bytes at 2 a second
  EXPECT_EQ(exclusive_time_s(*phases), 1 + 3 + 4 + 3 + 1.5);
  EXPECT_EQ(barrier_time_s(*phases, 3, 3), exclusive_time_s(*phases));
  phases = device_phases({layer, swapped}, devices);
  EXPECT_EQ(phases->gate_s, (std::vector<double>{2, 0.5}));
  EXPECT_EQ(phases->ffn_s, (std::vector<double>{8, 2}));
  phases = device_phases({layer, together}, devices);
  EXPECT_EQ(phases->ffn_s, (std::vector<double>{12, 0}));
  EXPECT_EQ(phases->all_to_all_s, (std::vector<double>{0, 0}));
}

// Device 0 has the long gate, device 1 the long all-to-all: equation (1) adds them up by device,
// equation (2) waits for both.
TEST(ExclusiveTime, EquationsOneAndTwo) {
  const DevicePhases phases{{5, 1}, {2, 4}, {1, 1}, {2, 7}};
  EXPECT_EQ(exclusive_time_s(phases), 8 + 11 + 1);
  EXPECT_EQ(barrier_time_s(phases, 7, 7), 5 + 7 + 4 + 7 + 1);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const MoeLayerLoad layer = random_layer(5, 1, seed);
    const std::vector<ServingDevice> devices = {{1e9, 1}, {2e9, 1}, {2e9, 2}, {3e9, 2}, {3e9, 4}};
    auto drawn = device_phases({layer, random_assignment(5, seed)}, devices);
    ASSERT_TRUE(drawn.ok());
    const auto& all = drawn->all_to_all_s;
    const double longest_s = *std::max_element(all.begin(), all.end());
    // Both are sums of the same five rounded terms or smaller ones.
    ASSERT_LE(exclusive_time_s(*drawn),
              barrier_time_s(*drawn, longest_s, longest_s) * (1 + 1e-15)) << "seed " << seed;
  }
}

// All-to-alls go on without a pause: table 2 as printed.
TEST(ColocatedTimes, NetworkIsTheBottleneck) {
  const ColocatedTimes end = colocated_times({{1, 5, 1, 1}, {1, 4, 1, 1}, 8});
  EXPECT_EQ(end.gate_b_s, 1);
  EXPECT_EQ(end.dispatch_a_s, 5);
  EXPECT_EQ(end.ffn_a_s, 6);
  EXPECT_EQ(end.dispatch_b_s, 8);
  EXPECT_EQ(end.ffn_b_s, 9);
  EXPECT_EQ(end.combine_a_s, 8 + 5);
  EXPECT_EQ(end.aggregate_a_s, 14);
  EXPECT_EQ(end.combine_b_s, 8 + 8);
  EXPECT_EQ(end.aggregate_b_s, 17);
  EXPECT_EQ(end.gate_a_s, 18);
}

// The network waits for experts: what the table leaves out counts.
TEST(ColocatedTimes, ComputationIsTheBottleneck) {
  const ColocatedTimes end = colocated_times({{1, 2, 5, 1}, {4, 2, 3, 1}, 3});
  EXPECT_EQ(end.ffn_a_s, 9);
  EXPECT_EQ(end.dispatch_b_s, 6);   // the gate's 4 and 2, not 3
  EXPECT_EQ(end.ffn_b_s, 12);
  EXPECT_EQ(end.combine_a_s, 11);   // F^a's 9 and 2, not 3 + 2
  EXPECT_EQ(end.aggregate_a_s, 13);
  EXPECT_EQ(end.combine_b_s, 14);   // F^b's 12 and 2, not 6
  EXPECT_EQ(end.aggregate_b_s, 15);
  EXPECT_EQ(end.gate_a_s, 16);
}

// Both combines wait for one model's experts.
TEST(ColocatedTimes, BothCombinesFollowTheFirstModelsExperts) {
  const ColocatedTimes end = colocated_times({{0, 2, 20, 1}, {0, 2, 1, 1}, 4});
  EXPECT_EQ(end.ffn_a_s, 22);
  EXPECT_EQ(end.ffn_b_s, 23);
  EXPECT_EQ(end.combine_a_s, 24);
  EXPECT_EQ(end.combine_b_s, 26);  // 4 after F^a, not C^b's 2 after F^b
  EXPECT_EQ(end.gate_a_s, 27);
}

// On any devices a colocated layer takes no longer than the two one after the other with barriers,
// and no less than either alone or than the computation of one device.
TEST(ColocatedTimes, BetweenTheLongerModelAndBothInTurn) {
  const std::vector<ServingDevice> devices = {{1e10, 1}, {1e10, 1}, {6e9, 0.5}, {5e9, 0.25}};
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const MoeLayerLoad a = random_layer(4, 1, seed), b = random_layer(4, 1, 1000 + seed);
    const auto on_a = random_assignment(4, seed), on_b = random_assignment(4, 1000 + seed);
    auto phases = colocated_phases({a, on_a}, {b, on_b}, devices);
    ASSERT_TRUE(phases.ok());
    const auto alone_s = [](const ModelPhases& model) {
      return model.gate_s + model.ffn_s + model.aggregate_s + 2 * model.all_to_all_s;
    };
    const double time_s = colocated_times(*phases).gate_a_s;
    // Sums of at most ten rounded terms.
    ASSERT_LE(time_s, (alone_s(phases->a) + alone_s(phases->b)) * (1 + 1e-14)) << "seed " << seed;
    ASSERT_GE(time_s, alone_s(phases->a) * (1 - 1e-14)) << "seed " << seed;
    ASSERT_GE(time_s, alone_s(phases->b) * (1 - 1e-14)) << "seed " << seed;
    const double computed_s = phases->a.ffn_s + phases->b.ffn_s + phases->a.aggregate_s +
                              phases->b.aggregate_s + phases->a.gate_s;
    ASSERT_GE(time_s, computed_s * (1 - 1e-14)) << "seed " << seed;
  }
}

TEST(Utilisation, IsTheShareOfComputingOnAverage) {
  const DevicePhases a{{1, 1}, {2, 4}, {1, 1}, {9, 9}}, b{{1, 1}, {1, 1}, {1, 1}, {9, 9}};
  const std::vector<DevicePhases> both = {a, b};
  EXPECT_EQ(utilisation({&a, 1}, 20), (4 + 6) / 40.0);
  EXPECT_EQ(utilisation(both, 20), (4 + 6 + 3 + 3) / 40.0);
  EXPECT_EQ(utilisation(both, 0), 0);
}

// Who has the bound or the least busy pairs is never slower. tools/bench/figures/planner_figures
// prints how much faster, and what the paper's figures are.
TEST(Speedups, OverTheBaselines) {
  constexpr int kTrials = 200;
  const auto layers = [](uint64_t seed) { return random_layer(8, 1, seed); };
  for (const double noise : {0.0, 0.25, 0.5, 0.75}) {
    SCOPED_TRACE(testing::Message() << "noise " << noise);
    const ServedSpeedups s = served_speedups(layers, noise, kTrials);
    // Equal traffic summed in another order differs by its rounding.
    EXPECT_GE(s.sjf.least, 1 - 1e-13);
    EXPECT_GE(s.rcs.least, 1 - 1e-13);
    EXPECT_GE(s.pairs_loss.least, 1 - 1e-13);
    EXPECT_GT(s.busy_together.mean, s.busy_alone.mean);
    for (const Speedup* over : {&s.rec, &s.lina_rcs, &s.rga, &s.rga_rec}) {
      EXPECT_GT(over->mean, 1);
    }
    EXPECT_LE(s.lina.mean, s.lina_rcs.mean);
    EXPECT_EQ(s.rga.count, 10 * kTrials);
    if (noise > 0) continue;
    EXPECT_GE(s.rec.least, 1 - 1e-13);
    for (const Speedup* loss : {&s.pairs_loss, &s.places_loss, &s.both_loss}) {
      EXPECT_EQ(loss->least, 1);
      EXPECT_EQ(loss->most, 1);
    }
  }
}

void expect_refused(const Status& status, const char* words) {
  EXPECT_EQ(status.code(), Exit::kUsage);
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
}

TEST(DevicePhases, NonsenseIsRefused) {
  const std::vector<ServingDevice> devices(2, {1, 1});
  const std::vector<int> places = {0, 1}, outside = {0, 2}, few = {0};
  const MoeLayerLoad good = two_experts();
  MoeLayerLoad layer = good;
  expect_refused(device_phases({layer, places}, {}).status(), "there are none");
  const std::vector<ServingDevice> still = {{1, 1}, {0, 1}}, backwards = {{1, -1}, {1, 1}};
  expect_refused(device_phases({layer, places}, still).status(), "bandwidths of devices: number 1");
  expect_refused(device_phases({layer, places}, backwards).status(), "speeds of devices: number 0");
  expect_refused(device_phases({layer, outside}, devices).status(), "number 1 is 2");
  expect_refused(device_phases({layer, few}, devices).status(), "there are 1, not 2");
  expect_refused(device_phases({MoeLayerLoad(), {}}, devices).status(), "without devices");
  layer.ffn_s[1] = std::numeric_limits<double>::quiet_NaN();
  expect_refused(device_phases({layer, places}, devices).status(), "computing times of experts");
  layer = good;
  layer.gate_s.pop_back();
  expect_refused(device_phases({layer, places}, devices).status(), "gate times of experts");
  layer = good;
  layer.traffic_bytes.at(1, 0) = -2;
  expect_refused(device_phases({layer, places}, devices).status(), "from device 1 to device 0");
  expect_refused(colocated_phases({good, places}, {layer, places}, devices).status(), "is -2");
}

}  // namespace
}  // namespace pagoda
