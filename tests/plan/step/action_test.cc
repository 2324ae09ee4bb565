#include "plan/step/action.h"

#include <gtest/gtest.h>

namespace pagoda {
namespace {

constexpr Phase kForward = Phase::kForward, kBackward = Phase::kBackward;

// A layer with experts, and behind it a dense one.
RunShape two_layers() {
  RunShape shape;
  shape.num_layers = 2;
  shape.is_moe = {1, 0};
  shape.microbatches = 3;
  return shape;
}

TEST(Actions, LayerMajorTakesAllMicrobatchesThroughALayer) {
  const Microbatches all{0, 3};
  const ActionList expected = {
      {ActionKind::kEmbed, kForward, -1, all},   {ActionKind::kAttention, kForward, 0, all},
      {ActionKind::kExperts, kForward, 0, all},  {ActionKind::kResidual, kForward, 0, all},
      {ActionKind::kAttention, kForward, 1, all}, {ActionKind::kHead, kForward, -1, all},
      {ActionKind::kAttention, kBackward, 1, all}, {ActionKind::kExperts, kBackward, 0, all},
      {ActionKind::kAttention, kBackward, 0, all}, {ActionKind::kEmbed, kBackward, -1, all},
  };
  EXPECT_EQ(layer_major(two_layers(), PassExtent::kStep), expected);
  const ActionList forward(expected.begin(), expected.begin() + 6);
  EXPECT_EQ(layer_major(two_layers(), PassExtent::kForward), forward);
  const ActionList layers(expected.begin(), expected.begin() + 5);
  EXPECT_EQ(layer_major(two_layers(), PassExtent::kLayers), layers);
}

TEST(Actions, MicrobatchMajorTakesOneMicrobatchThroughAllLayers) {
  ActionList expected;
  for (int64_t b = 0; b < 3; ++b) {
    const Microbatches one{b, 1};
    expected.push_back({ActionKind::kEmbed, kForward, -1, one});
    expected.push_back({ActionKind::kAttention, kForward, 0, one});
    expected.push_back({ActionKind::kExperts, kForward, 0, one});
    expected.push_back({ActionKind::kResidual, kForward, 0, one});
    expected.push_back({ActionKind::kAttention, kForward, 1, one});
  }
  EXPECT_EQ(microbatch_major(two_layers(), PassExtent::kLayers), expected);
  const ActionList by_layers = layer_major(two_layers(), PassExtent::kStep);
  expected.insert(expected.end(), by_layers.begin() + 5, by_layers.end());
  EXPECT_EQ(microbatch_major(two_layers(), PassExtent::kStep), expected);
}

// Theorem 1 with two layers and two chunks, written out: in the last layer, which has no experts,
// forward and backward of a chunk come back to back; elsewhere chunk follows chunk.
TEST(Actions, ZebraKeepsTheorem1OfEachKindOfDevice) {
  RunShape shape = two_layers();
  shape.microbatches = 4;
  shape.sums.chunks = 2;
  shape.zebra = true;
  shape.lags = {1, 1, 1};
  const Microbatches one{0, 2}, two{2, 2};
  const auto attention = [](int64_t layer, Microbatches of) {
    return Action{ActionKind::kAttention, kForward, layer, of};
  };
  const auto attention_back = [](int64_t layer, Microbatches of) {
    return Action{ActionKind::kAttention, kBackward, layer, of};
  };
  const auto experts = [](Phase phase, Microbatches of) {
    return Action{ActionKind::kExperts, phase, 0, of};
  };
  const auto residual = [](Microbatches of) {
    return Action{ActionKind::kResidual, kForward, 0, of};
  };
  const auto rest = [](ActionKind kind, Phase phase, Microbatches of) {
    return Action{kind, phase, -1, of};
  };
  const ActionList expected = {
      rest(ActionKind::kEmbed, kForward, one),
      attention(0, one),
      rest(ActionKind::kEmbed, kForward, two),
      attention(0, two),
      experts(kForward, one),
      residual(one),
      attention(1, one),
      experts(kForward, two),
      rest(ActionKind::kHead, kForward, one),
      attention_back(1, one),
      experts(kBackward, one),
      residual(two),
      attention(1, two),
      rest(ActionKind::kHead, kForward, two),
      attention_back(1, two),
      experts(kBackward, two),
      attention_back(0, one),
      attention_back(0, two),
      rest(ActionKind::kEmbed, kBackward, one),
      rest(ActionKind::kEmbed, kBackward, two),
  };
  EXPECT_EQ(make_actions(shape, PassExtent::kStep), expected);
}

TEST(Actions, TheRunChoosesTheirOrder) {
  RunShape shape = two_layers();
  EXPECT_EQ(make_actions(shape, PassExtent::kStep), layer_major(shape, PassExtent::kStep));
  shape.options.microbatch_major = true;
  EXPECT_EQ(make_actions(shape, PassExtent::kStep), microbatch_major(shape, PassExtent::kStep));
}

}  // namespace
}  // namespace pagoda
