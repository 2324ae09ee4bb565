#include "plan/machine/device_speeds.h"

#include <gtest/gtest.h>

namespace pagoda {
namespace {

using Doubles = std::vector<double>;

TEST(DeviceSpeeds, SpeedsOfDevicesThatHadNoWork) {
  // The second is a fifth slower at the other work than the first, the third had no work at all.
  const Doubles listed = {2, 1, 4}, measured = {20, 0, 0};
  const Doubles listed_other = {1, 1, 1}, measured_other = {5, 4, 0};
  const Doubles all = speeds_of_all(measured, listed, measured_other, listed_other);
  // Attention is 10 times as fast as listed; the second is at 4 / 4.5 of the mean.
  ASSERT_EQ(all.size(), 3u);
  EXPECT_DOUBLE_EQ(all[0], 20);
  EXPECT_DOUBLE_EQ(all[1], 1 * 10 * (4 / 4.5));
  EXPECT_DOUBLE_EQ(all[2], 4 * 10);
  EXPECT_TRUE(speeds_of_all(Doubles{0, 0}, Doubles{1, 1}, Doubles{1, 1}, Doubles{1, 1}).empty());
}

TEST(DeviceSpeeds, NoiseIsNoOtherShare) {
  EXPECT_FALSE(shares_differ(Doubles{1, 1}, Doubles{300, 300})) << "the unit does not matter";
  EXPECT_FALSE(shares_differ(Doubles{1, 1}, Doubles{1.08, 1})) << "shares of 0.519 and 0.481";
  EXPECT_TRUE(shares_differ(Doubles{1, 1}, Doubles{1.12, 1})) << "shares of 0.528 and 0.472";
  EXPECT_TRUE(shares_differ(Doubles{8, 1}, Doubles{8, 0.9})) << "a tenth of a small share";
}

TEST(DeviceSpeeds, ADealMustPay) {
  EXPECT_TRUE(deal_pays(/*gain_s=*/1, /*step_s=*/10, /*deal_s=*/20, /*steps_left=*/1000));
  EXPECT_FALSE(deal_pays(1, 10, 20.1, 1000)) << "forty steps gain less than twice 20.1 s";
  EXPECT_FALSE(deal_pays(1, 10, 20, 39)) << "so do the 39 that are left";
  EXPECT_FALSE(deal_pays(0.49, 10, 1, 1000)) << "less than a twentieth of a step";
  EXPECT_FALSE(deal_pays(0, 0, 0, 1000)) << "nothing";
}

// A token's attention takes a quarter of a second on both devices. Its four rows, two in each of
// two layers with experts, take half of one on the first and one on the second.
TEST(DeviceSpeeds, CountExpertsWhereWeightsTravel) {
  RunShape shape;
  shape.microbatches = 4;
  shape.microbatch_tokens = 10;
  shape.sums.shards = 4;
  shape.devices = 2;
  shape.is_moe = {1, 0, 1};
  shape.experts_per_token = 2;
  std::vector<DeviceSetup> devices(2);
  const double experts[] = {8, 4};
  for (size_t d = 0; d < 2; ++d) {
    devices[d].measured_attention = 4;
    devices[d].measured_experts = experts[d];
  }
  const std::vector<int> deal = {0, 0, 1, 1};
  for (const Sharing sharing : {Sharing::kRows, Sharing::kAuto}) {
    shape.sharing = sharing;
    EXPECT_DOUBLE_EQ(busiest_device_s(shape, deal, devices), 5);
  }
  shape.sharing = Sharing::kData;
  EXPECT_EQ(rows_with_token(shape), 4);
  EXPECT_DOUBLE_EQ(busiest_device_s(shape, deal, devices), 20 * 1.25);
  devices[1].measured_experts = 0;
  EXPECT_DOUBLE_EQ(devices[1].token_speed(4), 4) << "attention alone, until both were measured";
}

// Two stages of two devices, eight microbatches of 10 tokens in four shards of two.
TEST(DeviceSpeeds, TheBusiestDeviceOfAnyStage) {
  RunShape shape;
  shape.microbatches = 8;
  shape.microbatch_tokens = 10;
  shape.sums.shards = 4;
  shape.devices = 4;
  shape.stages.count = 2;
  const std::vector<int> deal = {0, 0, 0, 1, 2, 2, 3, 3};
  EXPECT_EQ(attended_tokens(shape, deal), (std::vector<int64_t>{60, 20, 40, 40}));
  std::vector<DeviceSetup> devices(4);
  const double speeds[] = {6, 1, 4, 8};
  for (size_t d = 0; d < devices.size(); ++d) devices[d].measured_attention = speeds[d];
  EXPECT_DOUBLE_EQ(busiest_device_s(shape, deal, devices), 20);
  devices[1].measured_attention = 4;
  EXPECT_DOUBLE_EQ(busiest_device_s(shape, deal, devices), 10);
  // One device attends to all.
  shape.devices = shape.stages.count = 1;
  EXPECT_EQ(attended_tokens(shape, {}), (std::vector<int64_t>{80}));
}

}  // namespace
}  // namespace pagoda
