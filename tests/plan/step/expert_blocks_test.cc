// Groups of experts' rows have every row of every microbatch once and in order, and the row blocks
// of a plain count, for any tokens and any number of blocks that are computed together.
#include "plan/step/expert_blocks.h"

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

// One row as a plain loop over experts, microbatches and their rows has it.
struct Row {
  int64_t expert, microbatch;
};
std::vector<Row> plain_rows(const LayerRouting& routing) {
  std::vector<Row> rows;
  for (size_t e = 0; e < routing.front().size(); ++e) {
    for (size_t b = 0; b < routing.size(); ++b) {
      rows.insert(rows.end(), static_cast<size_t>(routing[b][e]),
                  {static_cast<int64_t>(e), static_cast<int64_t>(b)});
    }
  }
  return rows;
}

// Expects of a group that its experts' rows stand behind one another, and that each microbatch's
// part has all of the microbatch's rows there, from its first one on.
void expect_laid_out(const ExpertGroup& group, const std::vector<Row>& rows) {
  const int64_t first = group.blocks.front().first_row;
  int64_t at = 0;
  std::map<int64_t, int64_t> of_microbatch, first_of;
  for (const ExpertGroup::Block& block : group.blocks) {
    EXPECT_EQ(block.group_row, at);
    EXPECT_EQ(block.first_row, first + at);
    for (int64_t r = block.first_row; r < block.first_row + block.rows; ++r) {
      const Row& row = rows[static_cast<size_t>(r)];
      EXPECT_EQ(row.expert, block.expert);
      first_of.try_emplace(row.microbatch, r);
      ++of_microbatch[row.microbatch];
    }
    at += block.rows;
  }
  ASSERT_EQ(group.parts.size(), of_microbatch.size());
  int64_t last_row = -1;
  for (const ExpertGroup::Part& part : group.parts) {
    EXPECT_EQ(part.rows, of_microbatch[part.microbatch]);
    EXPECT_EQ(part.first_row, first_of[part.microbatch]);
    EXPECT_EQ(part.group_row, part.first_row - first);
    EXPECT_GT(part.first_row, last_row);
    last_row = part.first_row;
  }
  EXPECT_EQ(group.rows(), at);
}

TEST(ExpertGroups, HaveEveryRowOnceAndInOrder) {
  int64_t several = 0, cut = 0;  // groups of several experts; experts in several groups
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto microbatches = static_cast<int64_t>(1 + random() % 5);
    const auto experts = static_cast<int64_t>(1 + random() % 9);
    const auto row_block = static_cast<int64_t>(1 + random() % 16);
    const auto group_blocks = static_cast<int64_t>(1 + random() % 5);
    const bool one_expert = random() % 3 == 0;
    const LayerRouting routing = random_layer(random, microbatches, experts);
    const std::vector<Row> rows = plain_rows(routing);
    const std::vector<int64_t> tokens = tokens_per_expert(routing);
    std::vector<int64_t> computed(static_cast<size_t>(experts), 0);
    int64_t next_row = 0, last_expert = -1, ordinal = -1;
    const std::vector<ExpertGroup> groups =
        expert_groups(routing, {row_block, group_blocks, one_expert, false});
    for (size_t g = 0; g < groups.size(); ++g) {
      int64_t row_blocks = 0;
      for (const ExpertGroup::Block& block : groups[g].blocks) {
        EXPECT_EQ(block.padding, 0);
        EXPECT_GT(block.rows, 0);
        EXPECT_EQ(block.first, block.expert != last_expert);
        cut += !block.first;
        ordinal += block.first;
        EXPECT_EQ(block.ordinal, ordinal);
        EXPECT_EQ(block.first_row, next_row);
        EXPECT_TRUE(!one_expert || block.expert == groups[g].blocks.front().expert);
        next_row += block.rows;
        last_expert = block.expert;
        int64_t& done = computed[static_cast<size_t>(block.expert)];
        EXPECT_EQ(done % row_block, 0) << "row blocks begin with their expert's first row";
        done += block.rows;
        EXPECT_EQ(block.last, done == tokens[static_cast<size_t>(block.expert)]);
        row_blocks += (block.rows + row_block - 1) / row_block;
      }
      several += groups[g].blocks.size() > 1;
      EXPECT_LE(row_blocks, group_blocks);
      const bool more = g + 1 < groups.size() &&
                        (!one_expert || groups[g + 1].blocks.front().expert == last_expert);
      EXPECT_TRUE(!more || row_blocks == group_blocks) << "a group with room left";
      expect_laid_out(groups[g], rows);
    }
    EXPECT_EQ(computed, tokens);
  }
  EXPECT_GT(several, 300);
  EXPECT_GT(cut, 300);
}

// Microbatches 0 and 1 are a chunk, 2 another. Expert 0 has 5 + 4 rows and 4, expert 1 has 2 and 1.
TEST(ExpertGroups, RowBlocksBeginAnewInEachChunk) {
  const LayerRouting routing = {{5, 0}, {4, 2}, {4, 1}};
  GroupLimits limits{4, 16, false, false};
  limits.begins_block = {1, 0, 1};
  const std::vector<ExpertGroup> groups = expert_groups(routing, limits);
  const std::vector<std::vector<std::pair<int64_t, int64_t>>> expected = {
      {{0, 9}}, {{0, 4}, {1, 2}}, {{1, 1}}};  // (expert, rows) of each group
  ASSERT_EQ(groups.size(), expected.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::pair<int64_t, int64_t>> blocks;
    for (const ExpertGroup::Block& b : groups[g].blocks) blocks.push_back({b.expert, b.rows});
    EXPECT_EQ(blocks, expected[g]);
    expect_laid_out(groups[g], plain_rows(routing));
  }
  EXPECT_TRUE(groups[0].blocks[0].first && !groups[0].blocks[0].last);
  EXPECT_TRUE(!groups[1].blocks[0].first && groups[1].blocks[0].last);
  EXPECT_EQ(groups[1].blocks[0].ordinal, 0);
  EXPECT_EQ(groups[2].blocks[0].ordinal, 1);
}

// The distribution of tokens over microbatches changes no block, so sums are the same. Groups do
// not change what an expert computes either.
TEST(ExpertGroups, DoNotDependOnTheMicrobatches) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const GroupLimits limits{16, 1 + seed % 3, false, seed % 2 == 0};
    const LayerRouting routing = random_layer(random, 4, 5);
    const auto groups = expert_groups(routing, limits);
    const auto of_one = expert_groups({tokens_per_expert(routing)}, limits);
    ASSERT_EQ(groups.size(), of_one.size());
    const std::vector<int64_t> tokens = tokens_per_expert(routing);
    const int64_t busiest = *std::max_element(tokens.begin(), tokens.end());
    std::vector<int64_t> computed(5, 0);
    for (size_t g = 0; g < groups.size(); ++g) {
      ASSERT_EQ(groups[g].blocks.size(), of_one[g].blocks.size());
      EXPECT_TRUE(!limits.padded || groups[g].blocks.size() == 1);
      for (size_t i = 0; i < groups[g].blocks.size(); ++i) {
        const ExpertGroup::Block &block = groups[g].blocks[i], &other = of_one[g].blocks[i];
        EXPECT_EQ(block.expert, other.expert);
        EXPECT_EQ(block.first_row, other.first_row);
        EXPECT_EQ(block.rows, other.rows);
        EXPECT_EQ(block.padding, other.padding);
        EXPECT_EQ(block.first, other.first);
        EXPECT_EQ(block.last, other.last);
        computed[static_cast<size_t>(block.expert)] += block.rows + block.padding;
      }
      expect_laid_out(groups[g], plain_rows(routing));
    }
    for (size_t e = 0; e < 5; ++e) EXPECT_EQ(computed[e], limits.padded ? busiest : tokens[e]);
  }
}

}  // namespace
}  // namespace pagoda
