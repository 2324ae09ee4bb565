// Assignment and colocation of experts against all permutations, and how far the paper's choices
// are from the best where they need not be it (papers: Aurora).
#include "plan/exchange/colocation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>

#include "plan/exchange/heterogeneous_colocation.h"
#include "plan/exchange/place_swaps.h"
#include "plan/rounds/traffic.h"
#include "tests/testing/plan/aurora_baselines.h"
#include "tests/testing/plan/place_search.h"
#include "tests/testing/plan/random_traffic.h"

namespace pagoda {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();

int pick(std::mt19937& random, int n) {
  return static_cast<int>(random() % static_cast<uint32_t>(n));
}

std::vector<double> random_integers(std::mt19937& random, int count, int least, int values) {
  std::vector<double> integers(count);
  for (double& value : integers) value = least + pick(random, values);
  return integers;
}

bool permutation(std::vector<int> indices) {
  std::sort(indices.begin(), indices.end());
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] != static_cast<int>(i)) return false;
  }
  return true;
}

// The paper's four kinds of devices, in turn; computing and sending are fast together.
std::vector<ServingDevice> heterogeneous_devices(int count) {
  constexpr double kBytesPerS[] = {12.5e9, 10e9, 6.25e9, 5e9};
  std::vector<ServingDevice> devices;
  for (int d = 0; d < count; ++d) {
    devices.push_back({kBytesPerS[d % 4], kBytesPerS[d % 4] / kBytesPerS[0]});
  }
  return devices;
}

std::vector<double> bandwidths(const std::vector<ServingDevice>& devices) {
  std::vector<double> rates;
  for (const ServingDevice& device : devices) rates.push_back(device.bytes_per_s);
  return rates;
}

struct Ratios {
  double mean = 0, worst = 1;
  int best = 0;
  void note(double ratio, int count) {
    mean += ratio / count;
    worst = std::max(worst, ratio);
    best += ratio == 1;
  }
};

TEST(AssignByLoad, HasTheLeastLargestLoadOverRate) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const int n = 1 + pick(random, 7);
    const auto loads = random_integers(random, n, 0, random() % 2 ? 5 : 1000);
    const auto rates = random_integers(random, n, 1, random() % 2 ? 3 : 100);
    const auto largest = [&](const std::vector<int>& device_of_expert) {
      double most = 0;
      for (int e = 0; e < n; ++e) most = std::max(most, loads[e] / rates[device_of_expert[e]]);
      return most;
    };
    double least = kFar;
    each_permutation(n, [&](const auto& devices) { least = std::min(least, largest(devices)); });
    const std::vector<int> found = assign_by_load(loads, rates);
    ASSERT_TRUE(permutation(found)) << "seed " << seed;
    ASSERT_EQ(largest(found), least) << "seed " << seed;
  }
}

// With communication and computation together it is a heuristic. An independent check had mean
// 1.07 and worst 1.37 of its own instances.
TEST(AssignByLoad, NearTheFastestOfAllAssignments) {
  constexpr int kLayers = 60, kExperts = 6;
  const auto devices = heterogeneous_devices(kExperts);
  Ratios sorted, swapped;
  for (uint64_t seed = 1; seed <= kLayers; ++seed) {
    const MoeLayerLoad layer = random_layer(kExperts, 1, seed);
    const auto seconds = [&](const std::vector<int>& device_of_expert) {
      auto phases = device_phases({layer, device_of_expert}, devices);
      EXPECT_TRUE(phases.ok());
      return exclusive_time_s(*phases);
    };
    double least = kFar;
    each_permutation(kExperts,
                     [&](const auto& places) { least = std::min(least, seconds(places)); });
    const std::vector<int> by_load = assign_by_load(layer.ffn_s, bandwidths(devices));
    auto end = swapped_assignment({layer, by_load}, devices);
    ASSERT_TRUE(end.ok()) << end.status().message();
    ASSERT_TRUE(permutation(end->device_of_expert));
    ASSERT_EQ(seconds(end->device_of_expert), end->inference_s);
    ASSERT_LE(end->inference_s, seconds(by_load)) << "seed " << seed;
    ASSERT_GE(end->inference_s, least) << "seed " << seed;
    sorted.note(seconds(by_load) / least, kLayers);
    swapped.note(end->inference_s / least, kLayers);
  }
  std::printf("seeds 1 to %d, %d experts on 4 kinds of devices, over the fastest: by load mean "
              "%.4f, worst %.3f, best in %d; and swapped mean %.4f, worst %.3f, best in %d\n",
              kLayers, kExperts, sorted.mean, sorted.worst, sorted.best, swapped.mean,
              swapped.worst, swapped.best);
  EXPECT_LT(sorted.mean, 1.10);
  EXPECT_LT(swapped.mean, sorted.mean);
}

double least_busiest(const std::vector<ExpertTraffic>& a, const std::vector<ExpertTraffic>& b) {
  double least = kFar;
  each_permutation(static_cast<int>(a.size()), [&](const std::vector<int>& b_of_a) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const ExpertTraffic& other = b[b_of_a[i]];
      most = std::max({most, a[i].sent + other.sent, a[i].received + other.received});
    }
    least = std::min(least, most);
  });
  return least;
}

TEST(Colocate, SortedPairsAreTheLeastBusyOfAll) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const int n = 1 + pick(random, 7), values = random() % 2 ? 5 : 1000;
    std::vector<ExpertTraffic> a, b;
    for (double v : random_integers(random, n, 0, values)) a.push_back({v, v});
    for (double v : random_integers(random, n, 0, values)) b.push_back({v, v});
    auto found = colocate(a, b);
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_TRUE(permutation(found->b_of_a));
    ASSERT_EQ(found->busiest, least_busiest(a, b)) << "seed " << seed;
  }
}

// The chosen colocation has the least busiest line of both models' traffic; no order beats its
// time.
TEST(Colocate, MatchedPairsAreTheLeastBusyOfAll) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const int n = 2 + pick(random, 6);
    SquareMatrix<double> of_a(n), of_b(n);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        of_a.at(i, j) = pick(random, 100);
        of_b.at(i, j) = pick(random, j == 0 ? 400 : 50);
      }
    }
    const auto a = expert_traffic(of_a), b = expert_traffic(of_b);
    auto found = colocate(a, b);
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_TRUE(permutation(found->b_of_a));
    ASSERT_EQ(found->busiest, least_busiest(a, b)) << "seed " << seed;
    std::vector<int> device_of_b(n);
    for (int i = 0; i < n; ++i) device_of_b[found->b_of_a[i]] = i;
    ASSERT_EQ(line_bound(added(of_a, placed(of_b, device_of_b, device_of_b, n))), found->busiest);
  }
}

// Theorem 6.1: on equal devices the pairs also make the shortest inference.
TEST(Colocate, MatchedPairsAreTheFastestOnEqualDevices) {
  constexpr int kExperts = 6;
  const std::vector<ServingDevice> devices(kExperts, {12.5e9, 1});
  std::vector<int> device_of_a(kExperts);
  std::iota(device_of_a.begin(), device_of_a.end(), 0);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const MoeLayerLoad a = random_layer(kExperts, 1, seed);
    const MoeLayerLoad b = random_layer(kExperts, 1, 100000 + seed);
    const auto seconds = [&](const std::vector<int>& device_of_b) {
      auto phases = colocated_phases({a, device_of_a}, {b, device_of_b}, devices);
      EXPECT_TRUE(phases.ok());
      return colocated_times(*phases).gate_a_s;
    };
    double least = kFar;
    each_permutation(kExperts, [&](const auto& p) { least = std::min(least, seconds(p)); });
    auto pairs = colocate(expert_traffic(a.traffic_bytes), expert_traffic(b.traffic_bytes));
    ASSERT_TRUE(pairs.ok());
    std::vector<int> device_of_b(kExperts);
    for (int i = 0; i < kExperts; ++i) device_of_b[pairs->b_of_a[i]] = i;
    // Equal pairings sum a line's traffic in another order: at most 11 additions.
    ASSERT_NEAR(seconds(device_of_b), least, 1e-14 * least) << "seed " << seed;
  }
}

double slowest(const HeterogeneousColocation& found, const std::vector<ExpertDemand>& a,
               const std::vector<ExpertDemand>& b, const std::vector<ServingDevice>& devices) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      const int device = found.device_of_a[i];
      if (found.device_of_b[j] != device) continue;
      most = std::max(most, colocated_device_s(a[i], b[j], devices[device]));
    }
  }
  return most;
}

// The paper's figure is 1.07; an independent check had 1.03 to 1.06.
TEST(HeterogeneousColocation, DecoupledAgainstAllMatchings) {
  for (const auto& [n, instances] : {std::pair(4, 280), std::pair(5, 60), std::pair(6, 6)}) {
    const auto devices = heterogeneous_devices(n);
    Ratios decoupled;
    for (int k = 1; k <= instances; ++k) {
      SCOPED_TRACE(testing::Message() << n << " devices, seed " << k);
      const uint64_t seed = 1000 * static_cast<uint64_t>(n) + static_cast<uint64_t>(k);
      const auto a = expert_demands(random_layer(n, 1, seed));
      const auto b = expert_demands(random_layer(n, 1, 100000 + seed));
      const double least = fastest_colocation_s(a, b, devices);
      auto found = decoupled_colocation(a, b, devices);
      ASSERT_TRUE(found.ok());
      ASSERT_TRUE(permutation(found->device_of_a) && permutation(found->device_of_b));
      ASSERT_EQ(slowest(*found, a, b, devices), found->slowest_s);
      ASSERT_GE(found->slowest_s, least);
      decoupled.note(found->slowest_s / least, instances);
    }
    std::printf(
        "%d devices, seeds %d to %d, over the best of all matchings: decoupled mean %.4f, "
        "worst %.3f, best in %d of %d\n",
        n, 1000 * n + 1, 1000 * n + instances, decoupled.mean, decoupled.worst, decoupled.best,
        instances);
    EXPECT_LE(decoupled.mean, 1.07);
  }
}

// The same of table 2 with the longest phases of all devices, where a transmission has the smaller
// bandwidth of its ends: not what is matched for. Swaps look at it.
TEST(HeterogeneousColocation, InferenceTimesAgainstAllPlaces) {
  constexpr int kExperts = 4, kInstances = 280;
  const auto devices = heterogeneous_devices(kExperts);
  Ratios decoupled, swapped;
  for (int k = 1; k <= kInstances; ++k) {
    const uint64_t seed = 4000 + static_cast<uint64_t>(k);
    const MoeLayerLoad a = random_layer(kExperts, 1, seed);
    const MoeLayerLoad b = random_layer(kExperts, 1, 100000 + seed);
    const auto seconds = [&](const std::vector<int>& on_a, const std::vector<int>& on_b) {
      auto phases = colocated_phases({a, on_a}, {b, on_b}, devices);
      EXPECT_TRUE(phases.ok());
      return colocated_times(*phases).gate_a_s;
    };
    double least = kFar;
    each_permutation(kExperts, [&](const std::vector<int>& on_a) {
      each_permutation(kExperts, [&](const auto& on_b) {
        least = std::min(least, seconds(on_a, on_b));
      });
    });
    auto first = decoupled_colocation(expert_demands(a), expert_demands(b), devices);
    ASSERT_TRUE(first.ok());
    auto end = swapped_colocation({a, first->device_of_a}, {b, first->device_of_b}, devices);
    ASSERT_TRUE(end.ok()) << end.status().message();
    ASSERT_EQ(seconds(end->device_of_a, end->device_of_b), end->inference_s);
    const double ratio = seconds(first->device_of_a, first->device_of_b) / least;
    const double swapped_ratio = end->inference_s / least;
    ASSERT_GE(std::min(ratio, swapped_ratio), 1) << "seed " << seed;
    ASSERT_LE(swapped_ratio, ratio) << "seed " << seed;
    decoupled.note(ratio, kInstances);
    swapped.note(swapped_ratio, kInstances);
  }
  EXPECT_LT(swapped.mean, decoupled.mean);
  std::printf(
      "4 devices, seeds 4001 to %d, inference time over the best of all places: decoupled "
      "mean %.4f, worst %.3f; and swapped mean %.4f, worst %.3f, best in %d\n",
      4000 + kInstances, decoupled.mean, decoupled.worst, swapped.mean, swapped.worst,
      swapped.best);
}

TEST(RandomAssignment, IsAPermutation) {
  for (int n = 1; n <= 20; ++n) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      ASSERT_TRUE(permutation(random_assignment(n, seed)));
      ASSERT_EQ(random_assignment(n, seed), random_assignment(n, seed));
    }
  }
  EXPECT_NE(random_assignment(8, 1), random_assignment(8, 2));
}

void expect_refused(const Status& status, const char* words) {
  EXPECT_EQ(status.code(), Exit::kUsage);
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
}

TEST(Colocation, NonsenseIsRefused) {
  const std::vector<double> two = {1, 2}, three = {1, 2, 3}, bad = {1, -2};
  expect_refused(colocate_sorted(two, three).status(), "there are 3, not 2");
  expect_refused(colocate_sorted(two, bad).status(), "traffic of model b");
  const std::vector<ExpertTraffic> pair = {{1, 2}, {2, 1}}, one = {{1, 1}};
  const std::vector<ExpertTraffic> no_number = {{1, std::numeric_limits<double>::quiet_NaN()},
                                                {1, 1}};
  expect_refused(colocate(pair, one).status(), "there are 1, not 2");
  expect_refused(colocate(pair, no_number).status(), "receive: number 0 is nan");
  expect_refused(colocate({}, {}).status(), "there are none");
  const std::vector<ExpertDemand> loads(2, {1, 1, 1, {1, 1}});
  const std::vector<ServingDevice> devices(2, {1, 1}), stopped = {{1, 1}, {1, 0}};
  expect_refused(decoupled_colocation(loads, loads, {}).status(), "there are none");
  expect_refused(decoupled_colocation(loads, loads, stopped).status(),
                 "speeds of devices: number 1");
  expect_refused(decoupled_colocation(loads, {}, devices).status(), "there are none");
}

}  // namespace
}  // namespace pagoda
