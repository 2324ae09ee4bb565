// Shares of unequal devices: HEXA-MoE Table 2, all divisions of small wholes, and bytes counted by
// hand.
#include "plan/mesh/data_model_centric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <string>

namespace pagoda {
namespace {

std::vector<int64_t> shares(std::vector<double> device_s, int64_t whole, int64_t tile) {
  auto result = shares_by_speed(device_s, whole, tile);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.take();
}

TEST(DeviceSharesTest, TableTwo) {
  EXPECT_EQ(shares({4.58, 3.06}, 100, 1), (std::vector<int64_t>{40, 60}));
  EXPECT_EQ(shares({3.20, 3.18}, 100, 1), (std::vector<int64_t>{50, 50}));
  EXPECT_EQ(shares({3.28, 9.42}, 100, 1), (std::vector<int64_t>{74, 26}));
}

TEST(DeviceSharesTest, WholeTilesOfTheHiddenDimension) {
  const std::vector<int64_t> columns = shares({3.28, 9.42}, 14336, 128);
  EXPECT_EQ(columns[0] % 128, 0);
  EXPECT_EQ(columns[0] + columns[1], 14336);
  EXPECT_EQ(columns[0], 83 * 128);  // .7417 of 112 tiles is 83.07
}

double slowest_s(const std::vector<double>& device_s, const std::vector<int64_t>& tiles) {
  double slowest = 0;
  for (size_t i = 0; i < tiles.size(); ++i) {
    slowest = std::max(slowest, device_s[i] * static_cast<double>(tiles[i]));
  }
  return slowest;
}

// The least time of the slowest device over all divisions into tiles.
double least_slowest_s(const std::vector<double>& device_s, size_t device, int64_t left) {
  if (device + 1 == device_s.size()) return device_s[device] * static_cast<double>(left);
  double least = std::numeric_limits<double>::infinity();
  for (int64_t own = 0; own <= left; ++own) {
    least = std::min(least, std::max(device_s[device] * static_cast<double>(own),
                                     least_slowest_s(device_s, device + 1, left - own)));
  }
  return least;
}

TEST(DeviceSharesTest, NoDivisionIsDoneSooner) {
  constexpr uint32_t kSeed = 91;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  for (int k = 0; k < 2000; ++k) {
    std::vector<double> device_s(1 + random() % 4);
    for (double& s : device_s) s = 0.5 + static_cast<double>(random() % 1000) / 100;
    const int64_t tiles = 1 + random() % 20;
    const std::vector<int64_t> found = shares(device_s, tiles * 8, 8);
    ASSERT_EQ(std::accumulate(found.begin(), found.end(), int64_t{0}), tiles * 8);
    double speeds = 0;
    for (const double s : device_s) speeds += 1 / s;
    std::vector<int64_t> counts;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i] % 8, 0);
      counts.push_back(found[i] / 8);
      // Not below the share rounded down; a share rounded in double may be one unit in its last
      // place off a whole number.
      const double share = static_cast<double>(tiles) / device_s[i] / speeds;
      ASSERT_GE(counts.back(), static_cast<int64_t>(share * (1 - 1e-15)));
    }
    // The same products: equal to the last bit.
    ASSERT_EQ(slowest_s(device_s, counts), least_slowest_s(device_s, 0, tiles));
  }
}

SharedExperts some_experts() {
  SharedExperts e;
  e.layers = 12;
  e.layer_weight_bytes = 8000;
  e.layer_gradient_bytes = 16000;
  e.token_bytes = 10;
  e.tokens = 400;
  return e;
}

TEST(DeviceSharesTest, CacheThatLayersShare) {
  SharedExperts e = some_experts();
  const SharedBytes data = data_centric_bytes(e, 0.25).take();
  EXPECT_EQ(data.resident, 12 * 2000);
  EXPECT_EQ(data.cache, 8000 + 16000);
  EXPECT_EQ(data.gathered, 0);
  e.cached_layers = 2;
  EXPECT_EQ(data_centric_bytes(e, 0.25).take().all() - data.all(), 8000);
  EXPECT_EQ(saved_layers_bytes(e, 0.25).take().all() - data.all(), 11 * 8000);
  const SharedBytes model = model_centric_bytes(e, 0.25, 0.25).take();
  EXPECT_EQ(model.resident, data.resident);
  EXPECT_EQ(model.cache, 0);
  EXPECT_EQ(model.gathered, 2 * 300 * 10);
}

TEST(DeviceSharesTest, CrossoverOfBytes) {
  SharedExperts e = some_experts();
  EXPECT_EQ(data_centric_traffic(e), 32000);
  EXPECT_EQ(model_centric_traffic(e), 6 * 400 * 10);
  const int64_t crossover = crossover_tokens(e);
  EXPECT_EQ(crossover, 32000 / 60 + 1);
  e.tokens = crossover;
  EXPECT_LT(data_centric_traffic(e), model_centric_traffic(e));
  e.tokens = crossover - 1;
  EXPECT_GE(data_centric_traffic(e), model_centric_traffic(e));
}

// Transfers behind attention make data-centric the better one earlier, never later.
TEST(DeviceSharesTest, OverlapMovesTheCrossover) {
  SharedExperts e = some_experts();
  const auto first = [&](double overlapped_s) {
    for (e.tokens = 1;; ++e.tokens) {
      if (exchange_seconds(e, 4, 1000, overlapped_s).value().prefers_data()) return e.tokens;
    }
  };
  EXPECT_EQ(first(0), crossover_tokens(e));
  // 32000 B of which 3/4 pass in 24 s; 6 s of them hidden leaves 18 s, as do 400 tokens' rows.
  EXPECT_EQ(first(6), 401);
  EXPECT_EQ(first(24), 1);
}

TEST(DeviceSharesTest, RefusesNonsense) {
  const auto refused = [](auto&& result) {
    EXPECT_EQ(result.status().code(), Exit::kUsage);
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  };
  refused(shares_by_speed(std::vector<double>{}, 4, 1));
  refused(shares_by_speed(std::vector<double>{1, 0}, 4, 1));
  refused(shares_by_speed(std::vector<double>{1, -1}, 4, 1));
  refused(shares_by_speed(std::vector<double>{1, NAN}, 4, 1));
  refused(shares_by_speed(std::vector<double>{INFINITY}, 4, 1));
  refused(shares_by_speed(std::vector<double>{1}, 0, 1));
  refused(shares_by_speed(std::vector<double>{1}, 4, 0));
  refused(shares_by_speed(std::vector<double>{1}, 100, 8));
  SharedExperts e = some_experts();
  refused(data_centric_bytes(e, 0));
  refused(model_centric_bytes(e, 0.5, 1.5));
  refused(exchange_seconds(e, 0, 1000, 0));
  refused(exchange_seconds(e, 2, 0, 0));
  refused(exchange_seconds(e, 2, 1000, NAN));
  e.tokens = 0;
  refused(data_centric_bytes(e, 0.5));
}

}  // namespace
}  // namespace pagoda
