// Longest-first placement against every placement there is: never beyond Graham's bound, at it in
// his example; the balance it reaches on skewed routing.
#include "plan/exchange/expert_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace pagoda {
namespace {

std::vector<ExpertTime> computed(const std::vector<double>& times) {
  std::vector<ExpertTime> experts;
  for (const double time : times) experts.push_back({0, time});
  return experts;
}

double busiest(const ExpertPlacement& placement) {
  return *std::max_element(placement.device_s.begin(), placement.device_s.end());
}

double longest_first(const std::vector<ExpertTime>& experts, int32_t devices) {
  return busiest(place_longest_first(experts, devices).take());
}

double sum_of_max(const ExpertTime& e) { return std::max(e.upload_s, e.compute_s); }

// The least that the busiest device can have. Devices without an expert are alike, so that only the
// first of them is tried.
class BruteForce {
 public:
  BruteForce(const std::vector<ExpertTime>& experts, int32_t devices)
      : experts_(experts), loads_(static_cast<size_t>(devices), 0) {
    place(0);
  }
  double best() const { return best_; }

 private:
  void place(size_t e) {
    const double most = *std::max_element(loads_.begin(), loads_.end());
    if (most >= best_) return;
    if (e == experts_.size()) {
      best_ = most;
      return;
    }
    for (double& load : loads_) {
      const double before = load;
      load += sum_of_max(experts_[e]);
      place(e + 1);
      load = before;
      if (before == 0) break;
    }
  }
  const std::vector<ExpertTime> experts_;
  std::vector<double> loads_;
  double best_ = std::numeric_limits<double>::infinity();
};

// Graham 1969, of the least possible.
double longest_first_bound(int32_t devices) { return 4.0 / 3 - 1.0 / (3.0 * devices); }

TEST(ExpertPlacement, MeetsGrahamsExample) {
  const std::vector<ExpertTime> experts = computed({5, 5, 4, 4, 3, 3, 3});
  EXPECT_EQ(longest_first(experts, 3), 11);
  EXPECT_EQ(BruteForce(experts, 3).best(), 9);
  EXPECT_DOUBLE_EQ(longest_first_bound(3), 11.0 / 9);
  // Any number of devices: two each of 2k - 1 down to k + 1, and three of k.
  for (int32_t k = 2; k <= 40; ++k) {
    std::vector<double> times;
    for (int32_t t = 2 * k - 1; t > k; --t) times.insert(times.end(), 2, t);
    times.insert(times.end(), 3, k);
    EXPECT_EQ(longest_first(computed(times), k), 4 * k - 1);
    const double mean = std::accumulate(times.begin(), times.end(), 0.0) / k;
    EXPECT_EQ(mean, 3 * k);  // the optimum, 3 k, cannot be below it
    EXPECT_NEAR((4.0 * k - 1) / mean, longest_first_bound(k), 1e-15 * 4);
  }
}

// Integers, so that sums are exact and the comparison has no tolerance: 3 k times both sides.
TEST(ExpertPlacement, StaysWithinTheBoundOfEveryPlacement) {
  double worst = 0, worst_balanced = 0;
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto devices = static_cast<int32_t>(2 + random() % 3);
    const size_t count = 1 + random() % 10;
    const uint32_t range = 2 + random() % 30;
    const auto upload = static_cast<double>(random() % 10);
    std::vector<ExpertTime> experts;
    for (size_t e = 0; e < count; ++e) {
      experts.push_back({upload, static_cast<double>(random() % range)});
    }
    const ExpertPlacement placement = place_longest_first(experts, devices).take();
    std::vector<double> loads(static_cast<size_t>(devices), 0);
    for (size_t e = 0; e < count; ++e) {
      loads[static_cast<size_t>(placement.device_of_expert[e])] += sum_of_max(experts[e]);
    }
    EXPECT_EQ(loads, placement.device_s);
    const double best = BruteForce(experts, devices).best();
    EXPECT_GE(busiest(placement), best);
    EXPECT_LE(3 * devices * busiest(placement), (4 * devices - 1) * best);
    const ExpertPlacement balanced = place_balanced(experts, devices).take();
    EXPECT_GE(busiest(balanced), best);
    EXPECT_LE(busiest(balanced), busiest(placement));
    if (best > 0) worst_balanced = std::max(worst_balanced, busiest(balanced) / best);
    if (best > 0) worst = std::max(worst, busiest(placement) / best);
  }
  std::printf("worst %.4f of the optimum, balanced %.4f\n", worst, worst_balanced);
}

// A pipeline of two stages simulated by events: one upload at a time, one computation at a time.
TEST(ExpertPlacement, PipelineIsUploadsBesideComputation) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<ExpertTime> experts;
    for (uint32_t e = random() % 8; e > 0; --e) {
      experts.push_back({static_cast<double>(random() % 9), static_cast<double>(random() % 9)});
    }
    // Unit by unit of time: what is left of the upload and of the computation under strategy.
    size_t uploaded = 0, done = 0;
    double upload_left = 0, compute_left = 0, now = 0;
    const auto settle = [&] {
      while (uploaded < experts.size() && upload_left == 0) {
        if (++uploaded < experts.size()) upload_left = experts[uploaded].upload_s;
      }
      while (done < uploaded && compute_left == 0) {
        if (++done < experts.size()) compute_left = experts[done].compute_s;
      }
    };
    if (!experts.empty()) {
      upload_left = experts[0].upload_s;
      compute_left = experts[0].compute_s;
      settle();
      while (done < experts.size()) {
        if (done < uploaded) --compute_left;
        if (uploaded < experts.size()) --upload_left;
        ++now;
        settle();
      }
    }
    EXPECT_EQ(pipelined_s(experts), now);
  }
}

struct Balance {
  double longest_first = 0;  // max / mean over devices
  double balanced = 0;       // the same of place_balanced
  double best = 0;           // of every placement; of 8 experts only
  double in_order = 0;       // with as many experts on each in their order
  double floor = 0;          // what max / mean cannot be below
};

constexpr double kTarget = 1.05;
constexpr int kCases = 50;

// Ratios to the floor of one algorithm.
struct Cases {
  double worst = 0, sum = 0, excess = 0;
  int beyond = 0;

  void add(double reached, double floor, bool each_within) {
    if (each_within) {
      EXPECT_LE(reached, kTarget * floor);
    }
    beyond += reached > kTarget * floor;
    worst = std::max(worst, reached / floor);
    sum += reached / floor;
    if (floor == 1) excess += reached - 1;
  }
  void print() const { std::printf("  %.4f %.4f %4d  ", worst, excess / kCases, beyond); }
};

// Tokens by a power law, experts in random order; compute alone counts.
Balance balance_of(std::mt19937& random, size_t num_experts, int32_t devices, double power) {
  std::vector<double> times;
  for (size_t e = 0; e < num_experts; ++e) {
    const double noise = 0.5 + static_cast<double>(random() % 1000) / 1000;
    times.push_back(std::round(1e6 * noise / std::pow(static_cast<double>(e + 1), power)) + 1);
  }
  std::shuffle(times.begin(), times.end(), random);
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / devices;
  std::vector<double> static_loads(static_cast<size_t>(devices), 0);
  for (size_t e = 0; e < num_experts; ++e) {
    static_loads[e * static_cast<size_t>(devices) / num_experts] += times[e];
  }
  Balance balance;
  balance.floor = std::max(1.0, *std::max_element(times.begin(), times.end()) / mean);
  balance.longest_first = longest_first(computed(times), devices) / mean;
  balance.balanced = busiest(place_balanced(computed(times), devices).take()) / mean;
  if (num_experts == 8) balance.best = BruteForce(computed(times), devices).best() / mean;
  balance.in_order = *std::max_element(static_loads.begin(), static_loads.end()) / mean;
  return balance;
}

// The target: the busiest device at most 1.05 of the mean or, where that is more, of the hottest
// expert; and where it is the mean, half the excess over it of experts left in order (of all such
// cases together; a single one may be in balance by chance). With eight experts a device every case
// meets it; with four only their mean does, for single experts are large there: how many cases do
// not is printed, and of how many with 8 experts the best placement there is does not either.
TEST(ExpertPlacement, BalancesSkewedRouting) {
  std::printf("            longest first            balanced                in order\n"
              "   E  k  power  worst  excess beyond   worst  excess beyond  excess\n");
  int beyond_best = 0;
  for (const int32_t devices : {2, 4, 8}) {
    for (const size_t each : {4, 8, 16}) {
      for (const double power : {0.0, 0.5, 1.0, 1.5}) {
        const size_t num_experts = each * static_cast<size_t>(devices);
        Cases longest, balanced;
        double in_order = 0;
        for (uint32_t seed = 1; seed <= kCases; ++seed) {
          SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << num_experts
                                          << " experts on " << devices << ", power " << power);
          std::mt19937 random(seed);
          const Balance balance = balance_of(random, num_experts, devices, power);
          EXPECT_LE(balance.balanced, balance.longest_first);
          longest.add(balance.longest_first, balance.floor, each >= 8);
          balanced.add(balance.balanced, balance.floor, each >= 8);
          if (balance.floor == 1) in_order += balance.in_order - 1;
          if (num_experts == 8) beyond_best += balance.best > kTarget * balance.floor;
        }
        EXPECT_LE(longest.excess, in_order / 2);
        EXPECT_LE(balanced.excess, in_order / 2);
        EXPECT_LE(longest.sum / kCases, kTarget);
        EXPECT_LE(balanced.sum / kCases, kTarget);
        std::printf("%4zu %2d  %5.1f", num_experts, devices, power);
        longest.print();
        balanced.print();
        std::printf("  %.4f\n", in_order / kCases);
      }
    }
  }
  std::printf("the best placement is beyond in %d of %d cases with 8 experts\n", beyond_best,
              4 * kCases);
}

// The bound is for sums of max(upload, compute). Of what devices really take, their pipelines, the
// placement is further from the best one: the worst is printed.
TEST(ExpertPlacement, SaysHowFarItsPipelinesAreFromTheBest) {
  double worst = 0, worst_beyond = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto devices = static_cast<int32_t>(2 + random() % 2);
    const size_t count = 3 + random() % 5;
    std::vector<ExpertTime> experts;
    for (size_t e = 0; e < count; ++e) {
      experts.push_back({5, static_cast<double>(random() % 12)});
    }
    // With equal uploads no order of a device's experts is better than the longest first (Johnson).
    std::sort(experts.begin(), experts.end(), [](const ExpertTime& a, const ExpertTime& b) {
      return a.compute_s > b.compute_s;
    });
    const auto longest = [&](const std::vector<int32_t>& device_of_expert) {
      double most = 0;
      for (int32_t d = 0; d < devices; ++d) {
        std::vector<ExpertTime> of_device;
        for (size_t e = 0; e < count; ++e) {
          if (device_of_expert[e] == d) of_device.push_back(experts[e]);
        }
        most = std::max(most, pipelined_s(of_device));
      }
      return most;
    };
    double best = std::numeric_limits<double>::infinity();
    std::vector<int32_t> assigned(count, 0);
    for (size_t next = 0; next < count;) {  // counts up in base `devices`
      best = std::min(best, longest(assigned));
      for (next = 0; next < count && ++assigned[next] == devices; ++next) assigned[next] = 0;
    }
    const double placed =
        longest(place_longest_first(experts, devices).take().device_of_expert);
    EXPECT_GE(placed, best);
    worst = std::max(worst, placed / best);
    worst_beyond = std::max(worst_beyond, placed / best / longest_first_bound(devices));
  }
  std::printf("pipelines: worst %.3f of the best placement, %.3f of the bound for sums\n", worst,
              worst_beyond);
}

TEST(ExpertPlacement, CountsNothingForExpertsWithoutTokens) {

  const std::vector<int64_t> tokens = {0, 3, 0, 10};
  const std::vector<ExpertTime> times = expert_times(tokens, 2, 0.5).take();
  ASSERT_EQ(times.size(), 4u);
  EXPECT_EQ(times[0].upload_s + times[0].compute_s + times[2].upload_s, 0);
  EXPECT_EQ(times[1].upload_s, 2);
  EXPECT_EQ(times[1].compute_s, 1.5);
  EXPECT_EQ(times[3].compute_s, 5);
  const ExpertPlacement placement = place_longest_first(times, 2).take();
  EXPECT_EQ(placement.device_s, (std::vector<double>{5, 2}));
}

TEST(ExpertPlacement, RefusesNonsense) {
  const std::vector<ExpertTime> one = {{1, 1}};
  EXPECT_EQ(place_longest_first({}, 2).status().code(), Exit::kUsage);
  EXPECT_EQ(place_longest_first(one, 0).status().code(), Exit::kUsage);
  EXPECT_EQ(place_longest_first(one, -1).status().code(), Exit::kUsage);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const std::vector<ExpertTime> upload = {{bad, 1}}, compute = {{1, bad}};
    EXPECT_EQ(place_longest_first(upload, 2).status().code(), Exit::kUsage);
    EXPECT_EQ(place_longest_first(compute, 2).status().code(), Exit::kUsage);
    EXPECT_EQ(expert_times(std::vector<int64_t>{1}, bad, 1).status().code(), Exit::kUsage);
    EXPECT_EQ(expert_times(std::vector<int64_t>{1}, 1, bad).status().code(), Exit::kUsage);
  }
  EXPECT_EQ(expert_times({}, 1, 1).status().code(), Exit::kUsage);
  EXPECT_EQ(expert_times(std::vector<int64_t>{-1}, 1, 1).status().code(), Exit::kUsage);
}

}  // namespace
}  // namespace pagoda
