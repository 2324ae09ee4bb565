#include "plan/step/sum_shape.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace pagoda {
namespace {

// What the order leaves in buffer 0, written out.
std::string sum_of(const SumShape& sums, int64_t microbatches) {
  std::map<int64_t, std::string> buffers;
  for (const Summand& s : summation_order(sums, microbatches)) {
    std::string& buffer = buffers[s.buffer];
    buffer = (s.first ? "" : buffer + "+") + std::to_string(s.microbatch);
    for (int64_t to = s.buffer - 1; to >= s.buffer - s.additions; --to) {
      buffers[to] = "(" + buffers[to] + "," + buffers[to + 1] + ")";
    }
  }
  return buffers[0];
}

TEST(SumShape, OneShardIsAChain) { EXPECT_EQ(sum_of({1, 1}, 4), "0+1+2+3"); }

TEST(SumShape, ShardsAreTheLeavesOfABinaryTree) {
  EXPECT_EQ(sum_of({1, 2}, 4), "(0+1,2+3)");
  EXPECT_EQ(sum_of({1, 4}, 4), "((0,1),(2,3))");
  EXPECT_EQ(sum_of({1, 8}, 8), "(((0,1),(2,3)),((4,5),(6,7)))");
}

TEST(SumShape, AShardWithoutNeighbourGoesUpAlone) {
  EXPECT_EQ(sum_of({1, 3}, 3), "((0,1),2)");
  EXPECT_EQ(sum_of({1, 5}, 5), "(((0,1),(2,3)),4)");
  EXPECT_EQ(sum_of({1, 6}, 6), "(((0,1),(2,3)),(4,5))");
  EXPECT_EQ(sum_of({1, 7}, 7), "(((0,1),(2,3)),((4,5),6))");
}

// Two chunks of four columns: microbatches 4..7 lie under 0..3.
TEST(SumShape, AShardHasTheSameColumnsOfEveryChunk) {
  EXPECT_EQ(sum_of({2, 2}, 8), "(0+1+4+5,2+3+6+7)");
  EXPECT_EQ(sum_of({2, 4}, 8), "((0+4,1+5),(2+6,3+7))");
  EXPECT_EQ(sum_of({4, 1}, 4), "0+1+2+3");
}

TEST(SumShape, BuffersGrowWithTheLogarithmOfTheShards) {
  const std::map<int64_t, int64_t> expected = {{1, 1}, {2, 2}, {3, 2}, {4, 3},
                                               {5, 3}, {7, 3}, {8, 4}, {16, 5}};
  for (const auto& [shards, buffers] : expected) {
    EXPECT_EQ(sum_buffers({1, shards}), buffers) << shards;
    for (const Summand& s : summation_order({1, shards}, shards)) EXPECT_LT(s.buffer, buffers);
  }
}

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

}  // namespace
}  // namespace pagoda
