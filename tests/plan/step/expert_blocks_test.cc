// Groups of experts' rows have every row of every microbatch once and in order, and the row blocks
// of a plain count, for any tokens and any number of blocks that are computed together.
#include "plan/step/expert_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "plan/sums/sum_shape.h"

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

// The groups of a single device.
std::vector<ExpertGroup> groups_of_one(const LayerRouting& routing, const GroupLimits& limits) {
  std::vector<ExpertGroup> groups;
  for (const ExpertWave& wave : expert_waves(routing, limits)) groups.push_back(wave.front());
  return groups;
}

// Expects of a group that its experts' rows stand behind one another, and that its parts have all
// of them, each microbatch's by expert. Counts them in `seen`.
void expect_laid_out(const ExpertGroup& group, const std::vector<Row>& rows, std::vector<int>& seen,
                     int64_t shards = 1) {
  int64_t at = 0, in_parts = 0, last_microbatch = -1;
  std::map<int64_t, const ExpertGroup::Block*> block_at;  // [the group's row that it begins at]
  std::set<std::pair<int64_t, int64_t>> sums;             // (expert, shard)
  for (const ExpertGroup::Block& block : group.blocks) {
    EXPECT_EQ(block.group_row, at);
    EXPECT_TRUE(sums.insert({block.expert, block.cell % shards}).second) << "a sum is there once";
    block_at[at] = &block;
    at += block.rows;
  }
  EXPECT_EQ(group.rows(), at);
  for (const ExpertGroup::Part& part : group.parts) {
    EXPECT_GT(part.microbatch, last_microbatch);
    last_microbatch = part.microbatch;
    int64_t of_part = 0, last_expert = -1;
    for (const ExpertGroup::Run& run : part.runs) {
      EXPECT_GT(run.expert, last_expert);
      last_expert = run.expert;
      of_part += run.rows;
      const ExpertGroup::Block& block = *std::prev(block_at.upper_bound(run.group_row))->second;
      EXPECT_EQ(block.expert, run.expert);
      EXPECT_LE(run.group_row + run.rows, block.group_row + block.rows);
      EXPECT_EQ(run.group_row - block.group_row, run.first_row - block.first_row);
      for (int64_t r = run.first_row; r < run.first_row + run.rows; ++r) {
        EXPECT_EQ(rows[static_cast<size_t>(r)].expert, run.expert);
        EXPECT_EQ(rows[static_cast<size_t>(r)].microbatch, part.microbatch);
        ++seen[static_cast<size_t>(r)];
      }
    }
    EXPECT_EQ(part.rows, of_part);
    EXPECT_EQ(group.part(part.microbatch), &part);
    in_parts += of_part;
  }
  EXPECT_EQ(in_parts, at);
  EXPECT_EQ(group.part(last_microbatch + 1), nullptr);
}

// Expects that the wave goes on with each microbatch's experts where those before it ended.
void expect_in_order(const ExpertWave& wave, std::map<int64_t, int64_t>& newest_of_microbatch) {
  std::map<int64_t, std::set<int64_t>> experts;  // [microbatch]
  for (const ExpertGroup& group : wave) {
    for (const ExpertGroup::Part& part : group.parts) {
      for (const ExpertGroup::Run& run : part.runs) experts[part.microbatch].insert(run.expert);
    }
  }
  for (const auto& [microbatch, of] : experts) {
    int64_t& newest = newest_of_microbatch.try_emplace(microbatch, 0).first->second;
    EXPECT_GE(*of.begin(), newest) << "a token's sum has the experts in order";
    newest = *of.rbegin();
  }
}

TEST(ExpertWaves, HaveEveryRowOnceAndExpertsInOrder) {
  int64_t several = 0, cut = 0, beside = 0;  // groups of several experts; experts in several
                                             // groups; waves with work for several devices
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto microbatches = static_cast<int64_t>(1 + random() % 5);
    const auto experts = static_cast<int64_t>(1 + random() % 9);
    GroupLimits limits;
    limits.row_block = static_cast<int64_t>(1 + random() % 16);
    limits.group_blocks = static_cast<int64_t>(1 + random() % 5);
    limits.devices = static_cast<int>(1 + random() % 3);
    for (int64_t e = 0; e < experts; ++e) {
      limits.seats.seats.push_back(
          static_cast<int>(random() % static_cast<uint32_t>(limits.devices)));
    }
    const LayerRouting routing = random_layer(random, microbatches, experts);
    const std::vector<Row> rows = plain_rows(routing);
    const std::vector<int64_t> tokens = tokens_per_expert(routing);
    std::vector<int> seen(rows.size(), 0);
    std::vector<int64_t> computed(static_cast<size_t>(experts), 0);
    std::vector<int64_t> ordinal(static_cast<size_t>(limits.devices), -1);
    std::vector<int64_t> last_expert(static_cast<size_t>(limits.devices), 0);
    std::map<int64_t, int64_t> newest_of_microbatch;
    const std::vector<ExpertWave> waves = expert_waves(routing, limits);
    for (size_t w = 0; w < waves.size(); ++w) {
      ASSERT_EQ(std::ssize(waves[w]), limits.devices);
      int64_t fullest = 0, busy = 0;
      for (size_t d = 0; d < waves[w].size(); ++d) {
        const ExpertGroup& group = waves[w][d];
        if (group.blocks.empty()) continue;
        int64_t row_blocks = 0;
        for (const ExpertGroup::Block& block : group.blocks) {
          EXPECT_EQ(block.padding, 0);
          EXPECT_GT(block.rows, 0);
          EXPECT_EQ(limits.seats.seat(block.expert), static_cast<int>(d));
          int64_t& done = computed[static_cast<size_t>(block.expert)];
          EXPECT_EQ(block.first, done == 0);
          cut += !block.first;
          EXPECT_EQ(block.ordinal, ordinal[d] += block.first);
          EXPECT_EQ(done % limits.row_block, 0) << "row blocks begin with their expert's first row";
          done += block.rows;
          EXPECT_EQ(block.last, done == tokens[static_cast<size_t>(block.expert)]);
          row_blocks += (block.rows + limits.row_block - 1) / limits.row_block;
          EXPECT_GE(block.expert, last_expert[d]) << "a device has its experts in order";
          last_expert[d] = block.expert;
        }
        several += group.blocks.size() > 1;
        EXPECT_LE(row_blocks, limits.group_blocks);
        fullest = std::max(fullest, row_blocks);
        ++busy;
        expect_laid_out(group, rows, seen);
      }
      beside += busy > 1;
      expect_in_order(waves[w], newest_of_microbatch);
      EXPECT_TRUE(w + 1 == waves.size() || fullest == limits.group_blocks) << "room left";
    }
    EXPECT_EQ(computed, tokens);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), std::ssize(seen));
  }
  EXPECT_GT(several, 300);
  EXPECT_GT(cut, 300);
  EXPECT_GT(beside, 300);
}

// The rows of each device in each wave.
std::vector<std::vector<int64_t>> rows_of(const std::vector<ExpertWave>& waves) {
  std::vector<std::vector<int64_t>> rows;
  for (const ExpertWave& wave : waves) {
    std::vector<int64_t>& of_wave = rows.emplace_back();
    for (const ExpertGroup& group : wave) {
      of_wave.push_back(group.blocks.empty() ? 0 : group.rows());
    }
  }
  return rows;
}

// Four devices have an expert each, which gets 8 rows of each of 8 microbatches; two microbatches
// fill a group.
TEST(ExpertWaves, ExpertsLargerThanGroupsGoSideBySide) {
  GroupLimits limits{4, 4};
  limits.devices = 4;
  limits.seats.seats = {0, 1, 2, 3};
  const LayerRouting routing(8, std::vector<int64_t>(4, 8));
  EXPECT_EQ(rows_of(expert_waves(routing, limits)),
            (std::vector<std::vector<int64_t>>(4, {16, 16, 16, 16})));
  limits.padded = true;  // padding is of no microbatch
  EXPECT_EQ(expert_waves(routing, limits).size(), 4u * 4 - 3);
}

// Expert 0 has a row block of the first microbatch, one of both, and two rows; expert 1 begins when
// the first microbatch's are over.
TEST(ExpertWaves, NoExpertIsAheadOfThoseBeforeIt) {
  GroupLimits limits{4, 1};
  limits.devices = 2;
  limits.seats.seats = {0, 1};
  EXPECT_EQ(rows_of(expert_waves({{5, 4}, {5, 4}}, limits)),
            (std::vector<std::vector<int64_t>>{{4, 0}, {4, 4}, {2, 4}}));
}

// Two devices with the even and the odd experts, one row block a group.
TEST(ExpertWaves, TakeNeighboursOfAllDevices) {
  GroupLimits limits;
  limits.row_block = 4;
  limits.devices = 2;
  limits.seats.seats = {0, 1, 0, 1};
  // Expert 1 has rows for two waves, the second of which has room for nothing else on its device.
  EXPECT_EQ(rows_of(expert_waves({{3, 6, 0, 1}}, limits)),
            (std::vector<std::vector<int64_t>>{{3, 4}, {0, 2}, {0, 1}}));
}

// Microbatches 0 and 1 are a chunk, 2 another. Expert 0 has 5 + 4 rows and 4, expert 1 has 2 and 1.
TEST(ExpertWaves, RowBlocksBeginAnewInEachChunk) {
  const LayerRouting routing = {{5, 0}, {4, 2}, {4, 1}};
  GroupLimits limits{4, 16};
  limits.cells = {0, 0, 1};
  const std::vector<ExpertGroup> groups = groups_of_one(routing, limits);
  std::vector<int> seen(16, 0);
  const std::vector<std::vector<std::pair<int64_t, int64_t>>> expected = {
      {{0, 9}}, {{0, 4}, {1, 2}}, {{1, 1}}};  // (expert, rows) of each group
  ASSERT_EQ(groups.size(), expected.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::pair<int64_t, int64_t>> blocks;
    for (const ExpertGroup::Block& b : groups[g].blocks) blocks.push_back({b.expert, b.rows});
    EXPECT_EQ(blocks, expected[g]);
    expect_laid_out(groups[g], plain_rows(routing), seen);
  }
  EXPECT_EQ(seen, std::vector<int>(16, 1));
  EXPECT_TRUE(groups[0].blocks[0].first && !groups[0].blocks[0].last);
  EXPECT_TRUE(!groups[1].blocks[0].first && groups[1].blocks[0].last);
  EXPECT_EQ(groups[1].blocks[0].ordinal, 0);
  EXPECT_EQ(groups[2].blocks[0].ordinal, 1);
}

// Cells of one chunk are sums of their own, which a group has beside one another: expert 0 has 5
// rows in cell 0 and 4 in cell 1, expert 1 has 2 in cell 1.
TEST(ExpertWaves, AGroupHasSeveralCellsOfAnExpert) {
  GroupLimits limits{4, 16};
  limits.cells = {0, 1};
  limits.expert_shards = 2;
  const std::vector<ExpertGroup> groups = groups_of_one({{5, 0}, {4, 2}}, limits);
  ASSERT_EQ(groups.size(), 1u);
  std::vector<std::vector<int64_t>> blocks;
  for (const ExpertGroup::Block& b : groups[0].blocks) {
    blocks.push_back({b.expert, b.cell, b.rows, b.first, b.last});
    EXPECT_TRUE(b.begins_cell && b.ends_cell);
  }
  EXPECT_EQ(blocks,
            (std::vector<std::vector<int64_t>>{{0, 0, 5, 1, 0}, {0, 1, 4, 0, 1}, {1, 1, 2, 1, 1}}));
}

// Whatever the cells, a block lies in one of them, each begins with a row block of its own, and
// devices that attend to their shards alone have the same row blocks.
TEST(ExpertWaves, BlocksLieInOneCell) {
  int64_t several = 0, cut = 0;  // groups with several cells of an expert; cells in several groups
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto chunks = static_cast<int64_t>(1 + random() % 2);
    const auto shards = static_cast<int64_t>(1 + random() % 4);
    const LayerRouting routing =
        random_layer(random, chunks * shards * static_cast<int64_t>(1 + random() % 2), 4);
    const SumShape sums{chunks, shards, shards};
    GroupLimits limits{static_cast<int64_t>(1 + random() % 16),
                       static_cast<int64_t>(1 + random() % 9)};
    limits.expert_shards = shards;
    std::map<std::pair<int64_t, int64_t>, int64_t> expected, rows_of;  // [expert, cell] rows
    for (int64_t b = 0; b < std::ssize(routing); ++b) {
      limits.cells.push_back(sums.cell(b, std::ssize(routing)));
      for (int64_t e = 0; e < 4; ++e) {
        const int64_t rows = routing[static_cast<size_t>(b)][static_cast<size_t>(e)];
        if (rows > 0) expected[{e, limits.cells.back()}] += rows;
      }
    }
    std::vector<int> seen(plain_rows(routing).size(), 0);
    for (const ExpertGroup& group : groups_of_one(routing, limits)) {
      expect_laid_out(group, plain_rows(routing), seen, shards);
      std::map<int64_t, int> times;  // [expert]
      for (const ExpertGroup::Block& block : group.blocks) {
        int64_t& done = rows_of[{block.expert, block.cell}];
        EXPECT_EQ(block.begins_cell, done == 0);
        EXPECT_EQ(done % limits.row_block, 0);
        cut += done > 0;
        done += block.rows;
        EXPECT_EQ(block.ends_cell, (done == expected[{block.expert, block.cell}]));
        several += ++times[block.expert] == 2;
      }
    }
    EXPECT_EQ(rows_of, expected);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), std::ssize(seen));
  }
  EXPECT_GT(several, 100);
  EXPECT_GT(cut, 100);
}

// The distribution of tokens over microbatches changes no block, so sums are the same. Groups do
// not change what an expert computes either.
TEST(ExpertWaves, DoNotDependOnTheMicrobatches) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const GroupLimits limits{16, 1 + seed % 3, seed % 2 == 0};
    const LayerRouting routing = random_layer(random, 4, 5);
    const auto groups = groups_of_one(routing, limits);
    const auto of_one = groups_of_one({tokens_per_expert(routing)}, limits);
    std::vector<int> seen(plain_rows(routing).size(), 0);
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
      expect_laid_out(groups[g], plain_rows(routing), seen);
    }
    for (size_t e = 0; e < 5; ++e) EXPECT_EQ(computed[e], limits.padded ? busiest : tokens[e]);
  }
}

}  // namespace
}  // namespace pagoda
