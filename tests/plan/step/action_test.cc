#include "plan/step/action.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/step/zebra_actions.h"

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

// The gradients of the first chunk go to its experts ahead of the second chunk's head, which waits
// for experts.
TEST(Actions, ZebraPutsExpertsAsEarlyAsTheyGo) {
  RunShape shape;
  shape.num_layers = 1;
  shape.is_moe = {1};
  shape.microbatches = shape.sums.chunks = 2;
  shape.zebra = true;
  shape.lags = {0, 1, 1};
  const Microbatches one{0, 1}, two{1, 1};
  const ActionList expected = {
      {ActionKind::kEmbed, kForward, -1, one},     {ActionKind::kAttention, kForward, 0, one},
      {ActionKind::kExperts, kForward, 0, one},    {ActionKind::kResidual, kForward, 0, one},
      {ActionKind::kHead, kForward, -1, one},      {ActionKind::kEmbed, kForward, -1, two},
      {ActionKind::kAttention, kForward, 0, two},  {ActionKind::kExperts, kForward, 0, two},
      {ActionKind::kExperts, kBackward, 0, one},   {ActionKind::kResidual, kForward, 0, two},
      {ActionKind::kHead, kForward, -1, two},      {ActionKind::kExperts, kBackward, 0, two},
      {ActionKind::kAttention, kBackward, 0, one}, {ActionKind::kAttention, kBackward, 0, two},
      {ActionKind::kEmbed, kBackward, -1, one},    {ActionKind::kEmbed, kBackward, -1, two},
  };
  EXPECT_EQ(make_actions(shape, PassExtent::kStep), expected);
}

// An order that no lags make: the second chunk's first layer waits for the first chunk's second.
TEST(Actions, AStepTakesAnOrderThatIsGiven) {
  RunShape shape;
  shape.num_layers = 2;
  shape.is_moe = {1, 1};
  shape.microbatches = shape.sums.chunks = 2;
  shape.zebra = true;
  shape.lags = {1, 1, 1};
  const ActionList usual = zebra_actions(shape, PassExtent::kStep);
  ZebraOrders orders = zebra_orders(shape, PassExtent::kStep);
  EXPECT_EQ(join_orders(shape, orders, PassExtent::kStep), usual);
  // Attention of both chunks in layer 0, then of both in layer 1.
  ASSERT_EQ(orders.attention[1].layer, 0);
  ASSERT_EQ(orders.attention[2].layer, 1);
  std::swap(orders.attention[1], orders.attention[2]);
  const ActionList other = join_orders(shape, orders, PassExtent::kStep);
  EXPECT_NE(other, usual);
  EXPECT_EQ(other.size(), usual.size());
  shape.order = std::make_shared<const ActionList>(other);
  EXPECT_EQ(make_actions(shape, PassExtent::kStep), other);
  EXPECT_EQ(make_actions(shape, PassExtent::kForward), zebra_actions(shape, PassExtent::kForward));
}

// Whether the orders of both kinds of device can be joined, found by joining them here.
bool can_join(const RunShape& shape) {
  auto [attention, experts] = zebra_orders(shape, PassExtent::kStep);
  std::vector<Action> done;
  const auto is_done = [&](Action what) { return std::ranges::find(done, what) != done.end(); };
  const auto ready = [&](Action next) {
    const auto other = [&](ActionKind kind, Phase phase, int64_t layer) {
      return is_done({kind, phase, layer, next.microbatches});
    };
    const int64_t last = shape.num_layers - 1;
    const auto moe = [&](int64_t layer) { return shape.is_moe[static_cast<size_t>(layer)] != 0; };
    const auto newest = [&](int64_t layer) {
      return other(moe(layer) ? ActionKind::kExperts : ActionKind::kAttention, kForward, layer);
    };
    const auto gradient = [&](int64_t layer) {
      return layer == last ? other(ActionKind::kHead, kForward, -1)
                           : other(ActionKind::kAttention, kBackward, layer + 1);
    };
    if (next.kind == ActionKind::kHead) return newest(last);
    if (next.phase == kForward) {
      if (next.kind == ActionKind::kExperts) {
        return other(ActionKind::kAttention, kForward, next.layer);
      }
      return next.layer == 0 || newest(next.layer - 1);
    }
    if (next.kind == ActionKind::kExperts || !moe(next.layer)) return gradient(next.layer);
    return other(ActionKind::kExperts, kBackward, next.layer);
  };
  size_t a = 0, e = 0;
  for (bool any = true; any;) {
    const size_t before = done.size();
    while (a < attention.size() && ready(attention[a])) done.push_back(attention[a++]);
    while (e < experts.size() && ready(experts[e])) done.push_back(experts[e++]);
    any = done.size() > before;
  }
  return a == attention.size() && e == experts.size();
}

TEST(Actions, LagsWaitForEachOtherOnlyWhereTheOrdersCannotBeJoined) {
  int waiting = 0;
  for (const std::vector<uint8_t>& is_moe :
       {std::vector<uint8_t>{1, 1}, {1, 0}, {1, 0, 0}, {0, 1}, {1}}) {
    for (int64_t chunks = 2; chunks <= 4; ++chunks) {
      for (int lags = 0; lags < 6 * 6 * 6; ++lags) {
        RunShape shape;
        shape.num_layers = std::ssize(is_moe);
        shape.is_moe = is_moe;
        shape.microbatches = shape.sums.chunks = chunks;
        shape.zebra = true;
        shape.lags = {lags % 6, lags / 6 % 6, lags / 36};
        const bool waits = lags_wait_for_each_other(shape.lags, is_moe.back() != 0, chunks);
        EXPECT_EQ(waits, !can_join(shape)) << lags << " of " << chunks;
        waiting += waits;
      }
    }
  }
  EXPECT_GT(waiting, 0);
}

TEST(Actions, TheRunChoosesTheirOrder) {
  RunShape shape = two_layers();
  EXPECT_EQ(make_actions(shape, PassExtent::kStep), layer_major(shape, PassExtent::kStep));
  shape.options.microbatch_major = true;
  EXPECT_EQ(make_actions(shape, PassExtent::kStep), microbatch_major(shape, PassExtent::kStep));
}

}  // namespace
}  // namespace pagoda
