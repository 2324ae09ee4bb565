// How many row blocks of experts go together where there is room for as many as one likes.
#include "plan/memory/group_choice.h"

#include <gtest/gtest.h>

#include <random>

#include "plan/memory/memory_plan.h"
#include "tests/testing/plan/random_plan.h"
#include "tests/testing/plan/two_ranks.h"

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

// Experts have 192 rows of a chunk on average, and all but one have one device. However its rows
// are divided, each has a last block of one row at least, and what is left makes whole blocks.
TEST(GroupChoice, InZebraAChunksExpertsAreOneGroupOrEqualParts) {
  const int64_t experts = shape_of(2, 16).num_experts;
  RunShape shape = shape_of(2, 4 * 192 * experts);
  shape.zebra = true;
  shape.sums.chunks = 4;
  for (RecordShape& record : shape.records) {
    if (record.expert >= 0) record.device = record.expert > 0;
  }
  const int64_t others = experts - 1, all = others + (192 * others - others) / 256;
  ASSERT_GT(all, std::max<int64_t>(4, others)) << "some may have a second block";
  ASSERT_LT(all, kMost);
  EXPECT_EQ(blocks(shape), all);
  const auto too_much = [all](int64_t of_group, int) {
    return of_group == all ? int64_t{1} << 50 : int64_t{0};
  };
  EXPECT_EQ(choose_group(shape, true, int64_t{1} << 50, kMost, too_much).blocks, (all + 1) / 2);
  const int64_t parts = (all + 3) / 4;
  EXPECT_EQ(choose_group(shape, true, int64_t{1} << 50, 4, too_much).blocks,
            (all + parts - 1) / parts);
}

TEST(GroupChoice, WhatTheRunFileSaysIsTaken) {
  RunShape shape = shape_of(4, 4096);
  shape.options.group_blocks = 5;
  EXPECT_EQ(blocks(shape), 5);
}

// Blocks of 16 rows, of 200 in all, make far more than 8 waves. A row has 16 bytes, so a wave of
// rows has six pages of 4 KiB on each device: to and from its own experts, and those that leave for
// the other and come from there.
TEST(WavesInFlight, TakeAnEighthOfWhatIsLeft) {
  RunShape shape = two_ranks({1, 1}, Sharing::kRows);
  shape.experts_per_token = 1;
  shape.group_blocks = shape.options.group_blocks = 1;
  constexpr int64_t kWave = 6 * 4096;
  const int64_t least = least_slots(shape, PageTable(shape), 0).device_bytes[0];
  const auto chosen = [&](int64_t more) {
    const auto nothing = [](int64_t, int) { return int64_t{0}; };
    RunShape of_choice = shape;
    of_choice.waves_in_flight = choose_group(shape, true, least + more, kMost, nothing).waves;
    EXPECT_EQ(group_bytes(of_choice, nothing)[0], (of_choice.waves_in_flight - 2) * kWave);
    return of_choice.waves_in_flight;
  };
  EXPECT_EQ(chosen(0), 2);
  EXPECT_EQ(chosen(8 * 2 * kWave - 1), 2);
  EXPECT_EQ(chosen(8 * 2 * kWave), 4);
  EXPECT_EQ(chosen(8 * 6 * kWave - 1), 4);
  EXPECT_EQ(chosen(8 * 6 * kWave), 8);
  shape.waves_in_flight = 8;
  EXPECT_EQ(least_slots(shape, PageTable(shape), 0).device_bytes[0], least + 6 * kWave);
  EXPECT_EQ(chosen(0), 2) << "whatever the shape has";
}

// What stays on the devices of a process with two waves does so with more of them, and with larger
// groups: each device has room for its own pages, and none for those of both.
TEST(WavesInFlight, DriveNoStatesOffTheirDevices) {
  RunShape shape = two_ranks(std::vector<uint8_t>(150, 1), Sharing::kRows);
  shape.device_rank.clear();
  shape.experts_per_token = 1;
  shape.group_blocks = 1;
  constexpr int64_t kWave = 6 * 4096;
  const auto nothing = [](int64_t, int) { return int64_t{0}; };
  const auto plan = [&](int64_t device_bytes) {
    MemoryBudget budget{.device_bytes = device_bytes, .host_bytes = kGiB, .fixed_bytes = {0, 0}};
    return plan_memory(shape, PageTable(shape), budget, 0).take();
  };
  const std::vector<int64_t> alone = plan(kGiB).whole_on_device;
  const int64_t whole = std::max(alone[0], alone[1]);
  ASSERT_GT(whole, 2 * 8 * 6 * kWave) << "an eighth of what a step leaves is enough";
  const auto chosen = [&](int64_t more) {
    shape.waves_in_flight = kLeastWaves;
    const GroupChoice choice = choose_group(shape, true, whole + more, kMost, nothing);
    shape.group_blocks = choice.blocks;
    shape.waves_in_flight = choice.waves;
    EXPECT_TRUE(plan(whole + more).state_on_device) << more;
    return choice.waves;
  };
  shape.options.group_blocks = 1;
  EXPECT_EQ(chosen(0), 2);
  EXPECT_EQ(chosen(2 * kWave - 1), 2);
  EXPECT_EQ(chosen(2 * kWave), 4);
  EXPECT_EQ(chosen(6 * kWave), 8);
  shape.options = {.waves_in_flight = 2};
  chosen(0);
  EXPECT_EQ(shape.group_blocks, 1);
}

TEST(WavesInFlight, AreNoMoreThanALayerHas) {
  RunShape shape = two_ranks({1, 1}, Sharing::kRows);
  shape.experts_per_token = 1;
  const auto waves = [&](int64_t blocks) {
    shape.options.group_blocks = blocks;
    return choose_group(shape, true, kGiB, kMost, [](int64_t, int) { return int64_t{0}; }).waves;
  };
  EXPECT_EQ(waves(2), 8);  // 200 rows in blocks of 16, and the last ones of two experts
  EXPECT_EQ(waves(4), 4);
  EXPECT_EQ(waves(8), 2);
}

TEST(WavesInFlight, AreThoseOfTheRunFileButTwoInZebra) {
  RunShape shape = two_ranks({1, 1}, Sharing::kRows);
  shape.options.waves_in_flight = 3;
  const auto nothing = [](int64_t, int) { return int64_t{0}; };
  EXPECT_EQ(choose_group(shape, true, kGiB, kMost, nothing).waves, 3);
  shape.zebra = true;
  EXPECT_EQ(choose_group(shape, true, kGiB, kMost, nothing).waves, 2);
}

// A guest's weights have a page of 4 KiB. By turns there are two of them, for two waves of a row
// block: as many as two layers need, so that these cost nothing.
TEST(GuestLayers, AreAsManyAsAThirdOfWhatIsLeftHasRoomFor) {
  constexpr int64_t kPage = 4096;
  RunShape shape = two_ranks({1, 1, 1, 1, 1}, Sharing::kData);
  shape.group_blocks = 1;
  const int64_t least = least_slots(shape, PageTable(shape), 0).device_bytes[0];
  const auto chosen = [&](int64_t more) {
    return choose_guest_layers(shape, least + more, [](int) { return int64_t{0}; });
  };
  EXPECT_EQ(chosen(0), 2);
  EXPECT_EQ(chosen(3 * kPage - 1), 2);
  EXPECT_EQ(chosen(3 * kPage), 3);
  EXPECT_EQ(chosen(6 * kPage), 4);
  EXPECT_EQ(chosen(9 * kPage - 1), 4);
  EXPECT_EQ(chosen(kGiB), 5) << "there are no more";
  shape.guest_layers = 4;
  EXPECT_EQ(guest_layer_bytes(shape), std::vector<int64_t>{2 * kPage});
  EXPECT_EQ(least_slots(shape, PageTable(shape), 0).device_bytes[0], least + 2 * kPage);
}

// Four pages by turns for the groups of two blocks, and less than two layers' are no use.
TEST(GuestLayers, AreTwoAtLeastOrNone) {
  RunShape shape = two_ranks({1, 1, 1}, Sharing::kData);
  shape.num_experts = 8;
  shape.group_blocks = 1;
  shape.records = {{1000}};
  shape.layer_record.clear();
  for (int64_t l = 0; l < 3; ++l) {
    shape.layer_record.push_back(std::ssize(shape.records));
    shape.records.push_back({500, l});
    for (int e = 0; e < 8; ++e) shape.records.push_back({240, l, e, e % 2});
  }
  shape.records.push_back({1008});
  for (RecordShape& record : shape.records) record.state_bytes = 10 * record.num_elements;
  const int64_t least = least_slots(shape, PageTable(shape), 0).device_bytes[0];
  const auto chosen = [&](int64_t more) {
    return choose_guest_layers(shape, least + more, [](int) { return int64_t{0}; });
  };
  // Two layers have four experts of the other rank each, and two waves two.
  EXPECT_EQ(chosen(3 * 6 * 4096 - 1), 0);
  EXPECT_EQ(chosen(3 * 6 * 4096), 2);
  EXPECT_EQ(chosen(3 * 10 * 4096), 3);
}

// 100 rows of an expert on either device have more bytes than its weights, and 20 have fewer.
TEST(GuestLayers, ByAutoAreForThoseThatAreLikely) {
  RunShape shape = two_ranks({1, 1, 1}, Sharing::kAuto);
  const auto nothing = [](int) { return int64_t{0}; };
  EXPECT_EQ(choose_guest_layers(shape, kGiB, nothing), 3);
  shape.microbatch_tokens = 20;
  EXPECT_EQ(choose_guest_layers(shape, kGiB, nothing), 0);
  shape.sharing = Sharing::kData;
  EXPECT_EQ(choose_guest_layers(shape, kGiB, nothing), 3);
  shape.sharing = Sharing::kRows;
  EXPECT_EQ(choose_guest_layers(shape, kGiB, nothing), 0);
  shape.sharing = Sharing::kData;
  shape.device_rank.clear();
  EXPECT_EQ(choose_guest_layers(shape, kGiB, nothing), 0) << "in one process";
}

}  // namespace
}  // namespace pagoda
