// Blocks of experts' rows: every row of every microbatch once and in order, blocks as a plain count
// has them, whatever the tokens are.
#include "plan/expert_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace pagoda {
namespace {

LayerRouting random_layer(std::mt19937& random, int64_t microbatches, int64_t experts) {
  LayerRouting routing(static_cast<size_t>(microbatches));
  for (std::vector<int64_t>& tokens : routing) {
    for (int64_t e = 0; e < experts; ++e) {
      tokens.push_back(random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 40));
    }
  }
  return routing;
}

// The parts follow one another in the block and in the re-index vector, microbatches in order.
void expect_contiguous(const ExpertBlock& block) {
  int64_t at = 0, last_microbatch = -1;
  for (const ExpertBlock::Part& part : block.parts) {
    EXPECT_GT(part.rows, 0);
    EXPECT_EQ(part.block_row, at);
    EXPECT_EQ(part.first_row, block.first_row + at);
    EXPECT_GT(part.microbatch, last_microbatch);
    last_microbatch = part.microbatch;
    at += part.rows;
  }
  EXPECT_EQ(at, block.rows);
}

TEST(ExpertBlocks, HaveEveryRowOnceAndInOrder) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto microbatches = static_cast<int64_t>(1 + random() % 5);
    const auto experts = static_cast<int64_t>(1 + random() % 6);
    const auto row_block = static_cast<int64_t>(1 + random() % 16);
    const LayerRouting routing = random_layer(random, microbatches, experts);
    std::map<std::pair<int64_t, int64_t>, int64_t> rows;  // of an expert and microbatch
    std::vector<int64_t> computed(static_cast<size_t>(experts), 0);
    int64_t next_row = 0, last_expert = -1;
    for (const ExpertBlock& block : expert_blocks(routing, row_block, false)) {
      EXPECT_EQ(block.padding, 0);
      EXPECT_EQ(block.first, block.expert != last_expert);
      EXPECT_GE(block.expert, last_expert);
      EXPECT_EQ(block.first_row, next_row);
      expect_contiguous(block);
      for (const ExpertBlock::Part& part : block.parts) {
        rows[{block.expert, part.microbatch}] += part.rows;
      }
      next_row += block.rows;
      last_expert = block.expert;
      int64_t& done = computed[static_cast<size_t>(block.expert)];
      done += block.rows;
      const int64_t all = tokens_per_expert(routing)[static_cast<size_t>(block.expert)];
      EXPECT_EQ(block.last, done == all);
      EXPECT_TRUE(block.rows == row_block || block.last);
    }
    EXPECT_EQ(computed, tokens_per_expert(routing));
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t b = 0; b < microbatches; ++b) {
        EXPECT_EQ((rows[{e, b}]), routing[static_cast<size_t>(b)][static_cast<size_t>(e)]);
      }
    }
  }
}

// How tokens are spread over microbatches changes no block: sums are the same.
TEST(ExpertBlocks, DoNotDependOnTheMicrobatches) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const bool padded = seed % 2 == 0;
    const LayerRouting routing = random_layer(random, 4, 5);
    const auto blocks = expert_blocks(routing, 16, padded);
    const auto of_one = expert_blocks({tokens_per_expert(routing)}, 16, padded);
    ASSERT_EQ(blocks.size(), of_one.size());
    const std::vector<int64_t> tokens = tokens_per_expert(routing);
    const int64_t busiest = *std::max_element(tokens.begin(), tokens.end());
    std::vector<int64_t> computed(5, 0);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(blocks[i].expert, of_one[i].expert);
      EXPECT_EQ(blocks[i].first_row, of_one[i].first_row);
      EXPECT_EQ(blocks[i].rows, of_one[i].rows);
      EXPECT_EQ(blocks[i].padding, of_one[i].padding);
      EXPECT_EQ(blocks[i].first, of_one[i].first);
      EXPECT_EQ(blocks[i].last, of_one[i].last);
      expect_contiguous(blocks[i]);
      computed[static_cast<size_t>(blocks[i].expert)] += blocks[i].rows + blocks[i].padding;
    }
    for (size_t e = 0; e < 5; ++e) EXPECT_EQ(computed[e], padded ? busiest : tokens[e]);
  }
}

}  // namespace
}  // namespace pagoda
