// How many row blocks of experts go together where there is room for as many as one likes.
#include "plan/memory/group_choice.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/testing/plan/random_plan.h"

namespace pagoda {
namespace {

constexpr int64_t kMost = 16;

// A run that has so many rows of experts in a layer.
RunShape shape_of(int devices, int64_t rows) {
  std::mt19937 random(1);
  RunShape shape = random_shape(random, devices);
  shape.seat_speeds.clear();
  shape.set_microbatches(8);
  shape.experts_per_token = 2;
  shape.row_block = 256;
  shape.microbatch_tokens = rows / 16;
  return shape;
}

int64_t blocks(const RunShape& shape, bool together = true) {
  const auto nothing = [](int64_t, int) { return int64_t{0}; };
  return choose_group(shape, together, int64_t{1} << 50, kMost, nothing).blocks;
}

TEST(GroupChoice, OneDeviceTakesAllItHasRoomFor) {
  EXPECT_EQ(blocks(shape_of(1, 65536)), kMost);
  EXPECT_EQ(blocks(shape_of(1, 4096)), kMost);
  EXPECT_EQ(blocks(shape_of(1, 65536), false), 1) << "of a CPU alone";
}

// 65,536 rows are 256 blocks: with eight groups on each of two devices they are of 16 blocks, on
// each of four of 8; a quarter of the rows leaves a quarter of the blocks.
TEST(GroupChoice, SeveralDevicesHaveEightGroupsOfALayer) {
  EXPECT_EQ(blocks(shape_of(2, 65536)), 16);
  EXPECT_EQ(blocks(shape_of(4, 65536)), 8);
  EXPECT_EQ(blocks(shape_of(2, 16384)), 4);
  EXPECT_EQ(blocks(shape_of(4, 16384)), 2);
  EXPECT_EQ(blocks(shape_of(4, 4096)), 1);
  EXPECT_EQ(blocks(shape_of(2, 1 << 20)), kMost);
}

// A prompt's 4,096 rows are 16 blocks, and so many groups would have half a block on each of four
// devices; 65,536 are enough.
TEST(GroupChoice, OfAForwardPassWithFewRowsALayerIsOneGroup) {
  RunShape shape = shape_of(4, 4096);
  shape.training = false;
  EXPECT_EQ(blocks(shape), kMost);
  shape = shape_of(4, 16);
  shape.training = false;
  EXPECT_GE(4 * blocks(shape), shape.num_experts) << "a token of each sequence";
  shape = shape_of(4, 65536);
  shape.training = false;
  EXPECT_EQ(blocks(shape), 8);
}

// Each expert has 512 rows of a chunk, two row blocks, and all but one have one device.
TEST(GroupChoice, InZebraAChunksExpertsAreOneGroupOrEqualParts) {
  const int64_t experts = shape_of(2, 16).num_experts;
  RunShape shape = shape_of(2, 4 * 512 * experts);
  shape.zebra = true;
  shape.sums.chunks = 4;
  for (RecordShape& record : shape.records) {
    if (record.expert >= 0) record.device = record.expert > 0;
  }
  const int64_t all = 2 * (experts - 1);
  ASSERT_GT(all, 4);
  ASSERT_LT(all, kMost);
  EXPECT_EQ(blocks(shape), all);
  const auto too_much = [all](int64_t of_group, int) {
    return of_group == all ? int64_t{1} << 50 : int64_t{0};
  };
  EXPECT_EQ(choose_group(shape, true, int64_t{1} << 50, kMost, too_much).blocks, all / 2);
  const int64_t parts = (all + 3) / 4;
  EXPECT_EQ(choose_group(shape, true, int64_t{1} << 50, 4, too_much).blocks,
            (all + parts - 1) / parts);
}

TEST(GroupChoice, WhatTheRunFileSaysIsTaken) {
  RunShape shape = shape_of(4, 4096);
  shape.options.group_blocks = 5;
  EXPECT_EQ(blocks(shape), 5);
}

}  // namespace
}  // namespace pagoda
