#include "plan/step/assignment.h"

#include <gtest/gtest.h>

#include <vector>

namespace pagoda {
namespace {

std::vector<int> shards(int64_t count, const std::vector<double>& speeds, int64_t most = 64) {
  return deal_shards(count, speeds, most);
}

TEST(Assignment, EqualDevicesShareAlike) {
  EXPECT_EQ(shards(4, {1, 1}), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(shards(8, {1, 1, 1}), (std::vector<int>{0, 0, 0, 1, 1, 1, 2, 2}));
}

// Ten to six: five of eight shards, and three.
TEST(Assignment, AFasterDeviceTakesMore) {
  EXPECT_EQ(shards(8, {10, 6}), (std::vector<int>{0, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(shards(4, {1, 3}), (std::vector<int>{0, 1, 1, 1}));
}

// With the third shard the slow device alone would end at 8, the fast one with all of them at 3.
TEST(Assignment, ADeviceThatIsTooSlowHasNone) {
  EXPECT_EQ(shards(3, {1, 0.125}), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(shards(1, {1, 2}), (std::vector<int>{1}));
}

TEST(Assignment, TheFastestAttend) {
  EXPECT_EQ(shards(4, {1, 3, 2}, 1), (std::vector<int>{1, 1, 1, 1}));
  EXPECT_EQ(shards(5, {1, 3, 2}, 2), (std::vector<int>{1, 1, 1, 2, 2}));
  EXPECT_EQ(shards(2, {1, 1, 1}, 2), (std::vector<int>{0, 1})) << "of equal ones the first";
}

// Two ranks of four devices: with two shards each rank attends to one, with four its first two. A
// faster device goes first wherever it is.
TEST(Assignment, EqualDevicesOfDifferentRanksTakeTurns) {
  const std::vector<int> ranks = {0, 0, 0, 0, 1, 1, 1, 1};
  std::vector<double> speeds(8, 1);
  const auto dealt = [&](int64_t count, int64_t most) {
    return deal_shards(count, speeds, most, ShareKind::kSpeed, ranks);
  };
  EXPECT_EQ(dealt(2, 64), (std::vector<int>{0, 4}));
  EXPECT_EQ(dealt(4, 64), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(dealt(8, 2), (std::vector<int>{0, 0, 0, 0, 4, 4, 4, 4}));
  EXPECT_EQ(dealt(8, 64), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  speeds[2] = 2;
  EXPECT_EQ(dealt(4, 1), (std::vector<int>{2, 2, 2, 2}));
  EXPECT_EQ(dealt(3, 64), (std::vector<int>{0, 2, 4})) << "2 is the first, then ranks take turns";
}

// The fastest attend all the same.
TEST(Assignment, UniformSharesAreEqual) {
  const std::vector<double> speeds = {1, 3, 2};
  EXPECT_EQ(deal_shards(4, speeds, 2, ShareKind::kUniform), (std::vector<int>{1, 1, 2, 2}));
  EXPECT_EQ(deal_shards(3, speeds, 3, ShareKind::kUniform), (std::vector<int>{0, 1, 2}));
}

// Three to one: of eight the slow one has the fourth and the eighth.
TEST(Assignment, ExpertsAreDealtBySpeed) {
  const std::vector<double> equal = {2, 2, 2}, unequal = {3, 1};
  EXPECT_EQ(deal(5, equal), (std::vector<int>{0, 1, 2, 0, 1}));
  EXPECT_EQ(deal(8, unequal), (std::vector<int>{0, 0, 0, 1, 0, 0, 0, 1}));
}

}  // namespace
}  // namespace pagoda
