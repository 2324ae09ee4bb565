// Asym-EA: Algorithm 1 against its own definition in exact arithmetic and its memory bounds, and
// the search that starts from it against all assignments of small groups.
#include "tests/testing/hetermoe/asym_ea.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <string>

namespace pagoda {
namespace {

int64_t draw(std::mt19937& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint32_t>(most - least + 1));
}

ZebraGroup group_of(int32_t layers, int32_t attention_devices, int32_t expert_devices,
                    int32_t experts_of_device) {
  ZebraGroup group;
  group.layers = layers;
  group.attention_devices = attention_devices;
  group.expert_devices = expert_devices;
  group.experts = experts_of_device * expert_devices;
  return group;
}

struct Devices {
  int32_t attention, expert;
};
constexpr Devices kRatios[] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {2, 6}, {6, 2}, {4, 4}};

ZebraGroup draw_group(std::mt19937& random) {
  const Devices devices = kRatios[random() % std::size(kRatios)];
  const auto layers = static_cast<int32_t>(draw(random, 1, 12));
  const auto experts_of_device = static_cast<int32_t>(draw(random, 1, 4)) * 3;
  return group_of(layers, devices.attention, devices.expert, experts_of_device);
}

AsymTimes draw_times(std::mt19937& random) {
  return {draw(random, 1, 1000), draw(random, 1, 1000), draw(random, 1, 1000)};
}

TEST(AsymEaTest, OffloadsAsFigure6) {
  const auto offloaded = gather_and_squeeze(group_of(3, 1, 1, 6), {3, 4, 4}, {});
  ASSERT_TRUE(offloaded.ok()) << offloaded.status().message();
  EXPECT_EQ(offloaded.value(), (std::vector<int32_t>{0, 1, 1}));
}

// Without bounds: floor of all bubbles over what a chunk squeezes, never more than there is.
TEST(AsymEaTest, ShrinksTheGapsThatGatheringLeaves) {
  constexpr uint32_t kSeed = 81;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  int moved = 0;
  for (int k = 0; k < 2000; ++k) {
    const ZebraGroup group = draw_group(random);
    const int64_t m = group.attention_devices, n = group.expert_devices, layers = group.layers;
    const AsymTimes times = draw_times(random);
    const auto result = gather_and_squeeze(group, times, {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    // Bubble and squeeze, both times n of the paper.
    const int64_t n1 = std::max<int64_t>(1, n / m), n2 = n1 * m / n;
    const int64_t bubble = group.experts * (times.expert - times.attention) * layers;
    const int64_t squeeze = n * (times.expert * n2 + times.offloaded_expert * n1);
    const int64_t most = group.experts / n / n2 * layers;
    const int64_t chunks = std::clamp<int64_t>(bubble / squeeze, 0, most);
    const int64_t total =
        std::accumulate(result.value().begin(), result.value().end(), int64_t{0});
    ASSERT_EQ(total, chunks * n2);
    moved += total > 0;
    const auto [least, greatest] =
        std::minmax_element(result.value().begin(), result.value().end());
    ASSERT_LE(*greatest - *least, n2);  // spread
    ASSERT_LE(*greatest, group.experts / n);
  }
  EXPECT_GT(moved, 200);
}

TEST(AsymEaTest, KeepsBothBounds) {
  constexpr uint32_t kSeed = 82;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  int kept = 0, refused = 0, raised = 0, lowered = 0;
  for (int k = 0; k < 10000; ++k) {
    const ZebraGroup group = draw_group(random);
    const int64_t m = group.attention_devices, n = group.expert_devices, layers = group.layers;
    const AsymTimes times = draw_times(random);
    const int64_t all = int64_t{group.experts} * layers;
    const AsymBounds bounds = {draw(random, 0, all), draw(random, 0, all)};
    const auto result = gather_and_squeeze(group, times, bounds);
    // Is there a number of chunks that both bounds allow?
    const int64_t n1 = std::max<int64_t>(1, n / m), n2 = n1 * m / n;
    bool possible = false;
    for (int64_t c = 0; c <= group.experts / n / n2 * layers; ++c) {
      const bool fits = c * n1 <= bounds.most_per_attention_device;
      possible = possible || (fits && c * n * n2 >= bounds.least);
    }
    ASSERT_EQ(result.ok(), possible) << result.status().message();
    if (!possible) {
      ASSERT_EQ(result.status().code(), Exit::kDoesNotFit);
      ++refused;
      continue;
    }
    ++kept;
    const int64_t moved =
        n * std::accumulate(result.value().begin(), result.value().end(), int64_t{0});
    ASSERT_GE(moved, bounds.least);
    ASSERT_LE(moved / m, bounds.most_per_attention_device);
    for (const int32_t o : result.value()) ASSERT_LE(o, group.experts / n);
    const auto free = gather_and_squeeze(group, times, {});
    const int64_t wanted =
        n * std::accumulate(free.value().begin(), free.value().end(), int64_t{0});
    raised += moved > wanted;
    lowered += moved < wanted;
  }
  std::printf("%d kept (%d raised, %d lowered), %d refused\n", kept, raised, lowered, refused);
  EXPECT_GT(raised, 100);
  EXPECT_GT(lowered, 100);
}

// Attention is as slow as the experts, but these do not fit: spread evenly.
TEST(AsymEaTest, SpreadsWhatMemoryAsksFor) {
  const AsymBounds bounds = {AsymBounds::kNoLimit, 7};
  const auto result = gather_and_squeeze(group_of(4, 1, 2, 8), {5, 4, 4}, bounds);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result.value(), (std::vector<int32_t>{1, 1, 1, 1}));  // ceil(7 / 2) of two experts each
}

ZebraGroup random_group(std::mt19937& random) {
  constexpr Devices kFew[] = {{1, 1}, {1, 2}, {2, 2}};
  const Devices devices = kFew[random() % std::size(kFew)];
  ZebraGroup group = group_of(static_cast<int32_t>(draw(random, 2, 4)), devices.attention,
                              devices.expert, static_cast<int32_t>(draw(random, 2, 4)));
  group.microbatches = static_cast<int32_t>(draw(random, 2, 4));
  const auto seconds = [&](int64_t least, int64_t most) {
    return static_cast<double>(draw(random, least, most));
  };
  const double attention = seconds(20, 60), expert = attention + seconds(0, 60);
  const double offloaded = seconds(40, 100) / 100 * expert, exchange = seconds(0, 20);
  group.times.attention = {attention, 2 * attention};
  group.times.expert = {expert, 2 * expert};
  group.times.offloaded_expert = {offloaded, 2 * offloaded};
  group.times.dispatch = group.times.combine = {exchange, exchange};
  group.times.head_s = seconds(0, 30);
  return group;
}

// The least step of all assignments, with lags chosen for each.
double least_step_s(ZebraGroup group, int32_t layer) {
  if (layer == group.layers) return best_zebra(group).value().times.makespan_s;
  double least_s = std::numeric_limits<double>::infinity();
  for (int32_t o = 0; o <= group.experts / group.expert_devices; ++o) {
    group.offloaded[static_cast<size_t>(layer)] = o;
    least_s = std::min(least_s, least_step_s(group, layer + 1));
  }
  return least_s;
}

TEST(AsymEaTest, SearchAgainstAllAssignments) {
  constexpr uint32_t kSeed = 83;
  constexpr int kInstances = 40;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  double gathered_sum = 0, found_sum = 0, gathered_worst = 1, found_worst = 1;
  for (int k = 0; k < kInstances; ++k) {
    ZebraGroup group = random_group(random);
    const auto plan = plan_asym_ea(group, {});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    group.offloaded = plan.value().offloaded;
    EXPECT_EQ(best_zebra(group).value().times.makespan_s, plan.value().step_s);
    group.offloaded.assign(static_cast<size_t>(group.layers), 0);
    const double least_s = least_step_s(group, 0);
    const double gathered = plan.value().gathered_step_s / least_s;
    const double found = plan.value().step_s / least_s;
    ASSERT_LE(found, gathered);
    ASSERT_GE(found, 1);
    gathered_sum += gathered;
    found_sum += found;
    gathered_worst = std::max(gathered_worst, gathered);
    found_worst = std::max(found_worst, found);
  }
  std::printf("of %d: Algorithm 1 loses %.2f %% on average, at worst %.2f %%; searched %.2f %%, "
              "%.2f %%\n",
              kInstances, 100 * (gathered_sum / kInstances - 1), 100 * (gathered_worst - 1),
              100 * (found_sum / kInstances - 1), 100 * (found_worst - 1));
  EXPECT_LT(found_sum, gathered_sum);
}

TEST(AsymEaTest, SearchKeepsTheBounds) {
  constexpr uint32_t kSeed = 84;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  int checked = 0;
  for (int k = 0; k < 60; ++k) {
    ZebraGroup group = random_group(random);
    group.last_layer_experts = random() % 2 == 0;
    const int64_t all = int64_t{group.experts} * group.layers;
    const AsymBounds bounds = {draw(random, 0, all), draw(random, 0, all / 2)};
    const auto plan = plan_asym_ea(group, bounds);
    if (!plan.ok()) continue;
    ++checked;
    const int64_t moved = group.expert_devices * std::accumulate(plan.value().offloaded.begin(),
                                                                 plan.value().offloaded.end(),
                                                                 int64_t{0});
    EXPECT_GE(moved, bounds.least);
    EXPECT_LE(moved / group.attention_devices, bounds.most_per_attention_device);
    if (!group.last_layer_experts) {
      EXPECT_EQ(plan.value().offloaded.back(), 0);
    }
  }
  EXPECT_GT(checked, 20);
}

TEST(AsymEaTest, RefusesNonsense) {
  const ZebraGroup group = group_of(3, 1, 1, 6);
  const auto code = [&](const ZebraGroup& g, const AsymTimes& times, const AsymBounds& bounds) {
    const auto result = gather_and_squeeze(g, times, bounds);
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
    return result.status().code();
  };
  EXPECT_EQ(code(group, {0, 4, 4}, {}), Exit::kUsage);
  EXPECT_EQ(code(group, {3, -4, 4}, {}), Exit::kUsage);
  EXPECT_EQ(code(group, {3, 4, int64_t{1} << 60}, {}), Exit::kUsage);
  EXPECT_EQ(code(group_of(3, 2, 3, 2), {3, 4, 4}, {}), Exit::kUsage);
  EXPECT_EQ(code(group_of(0, 1, 1, 2), {3, 4, 4}, {}), Exit::kUsage);
  EXPECT_EQ(code(group, {3, 4, 4}, {-1, 0}), Exit::kUsage);
  EXPECT_EQ(code(group, {3, 4, 4}, {5, 6}), Exit::kDoesNotFit);
  EXPECT_EQ(code(group, {3, 4, 4}, {AsymBounds::kNoLimit, 19}), Exit::kDoesNotFit);
  EXPECT_FALSE(plan_asym_ea(group, {}).ok());  // times of nothing
}

}  // namespace
}  // namespace pagoda
