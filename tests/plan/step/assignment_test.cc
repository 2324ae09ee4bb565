#include "plan/step/assignment.h"

#include <gtest/gtest.h>

#include <vector>

namespace pagoda {
namespace {

std::vector<int> deal(int64_t shards, const std::vector<double>& speeds) {
  return deal_shards(shards, speeds);
}

TEST(Assignment, EqualDevicesShareAlike) {
  EXPECT_EQ(deal(4, {1, 1}), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(deal(8, {1, 1, 1}), (std::vector<int>{0, 0, 0, 1, 1, 1, 2, 2}));
}

// Ten to six: five of eight shards, and three.
TEST(Assignment, AFasterDeviceTakesMore) {
  EXPECT_EQ(deal(8, {10, 6}), (std::vector<int>{0, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(deal(4, {1, 3}), (std::vector<int>{0, 1, 1, 1}));
}

// With the third shard the slow device alone would end at 8, the fast one with all of them at 3.
TEST(Assignment, ADeviceThatIsTooSlowHasNone) {
  EXPECT_EQ(deal(3, {1, 0.125}), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(deal(1, {1, 2}), (std::vector<int>{1}));
}

}  // namespace
}  // namespace pagoda
