#include "plan/sums/sum_shape.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace pagoda {
namespace {

TEST(SumShape, DefaultShardsDivideTheColumns) {
  const std::map<int64_t, int64_t> expected = {{1, 1}, {2, 2},  {3, 1},  {4, 4}, {6, 2},
                                               {8, 8}, {12, 4}, {16, 8}, {40, 8}};
  for (const auto& [columns, shards] : expected) EXPECT_EQ(default_shards(columns), shards);
}

TEST(SumShape, FewerMicrobatchesAreDividedAsFarAsTheyGo) {
  EXPECT_EQ(coarser({1, 8}, 4), (SumShape{1, 4}));
  EXPECT_EQ(coarser({1, 8}, 6), (SumShape{1, 2}));
  EXPECT_EQ(coarser({4, 4}, 8), (SumShape{4, 2}));
  EXPECT_EQ(coarser({4, 4}, 1), (SumShape{1, 1}));
}

TEST(SumShape, AShardHasTheSameColumnsOfEveryChunk) {
  const SumShape sums{2, 2};  // two chunks of four columns
  const std::vector<int64_t> expected = {0, 0, 1, 1, 0, 0, 1, 1};
  for (int64_t b = 0; b < 8; ++b) EXPECT_EQ(sums.shard(b, 8), expected[static_cast<size_t>(b)]);
}

TEST(SumShape, FewerShardsStayWhereTheFirstOfThemWent) {
  EXPECT_EQ(fewer_shards({0, 0, 2, 1}, 2), (std::vector<int>{0, 2}));
  EXPECT_EQ(fewer_shards({1, 0}, 1), (std::vector<int>{1}));
  EXPECT_EQ(fewer_shards({}, 4), (std::vector<int>{}));
}

}  // namespace
}  // namespace pagoda
