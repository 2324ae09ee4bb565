#include "plan/step/pipeline_actions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/testing/plan/chunks_in_flight.h"

namespace pagoda {
namespace {

constexpr Phase kForward = Phase::kForward, kBackward = Phase::kBackward;

RunShape pipeline_of(int stages, PipelineOrder order, int64_t layers, int64_t chunks) {
  RunShape shape;
  shape.num_layers = layers;
  shape.is_moe.assign(static_cast<size_t>(layers), 1);
  shape.microbatches = shape.sums.chunks = chunks;
  shape.devices = stages;
  shape.stages = divide_into_stages(stages, order, layers, stages);
  for (int d = 0; d < stages; ++d) shape.shard_device.push_back(d);
  return shape;
}

TEST(Stages, LayersAndDevicesAreDivided) {
  const Stages neighbours = divide_into_stages(3, PipelineOrder::kGpipe, 7, 5);
  EXPECT_EQ(neighbours.layers, (std::vector<int>{0, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(neighbours.devices, (std::vector<int>{0, 0, 1, 1, 2}));
  EXPECT_EQ(neighbours.ordinal(4), 1);
  EXPECT_EQ(neighbours.most_layers(7), 3);
  const Stages turns = divide_into_stages(3, PipelineOrder::kBreadthFirst, 7, 5);
  EXPECT_EQ(turns.layers, (std::vector<int>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(turns.devices, neighbours.devices);
  for (int stages = 2; stages <= 5; ++stages) {
    for (int devices = stages; devices <= 9; ++devices) {
      const Stages of = divide_into_stages(stages, PipelineOrder::kGpipe, stages, devices);
      for (int s = 0; s < stages; ++s) {
        const DeviceRange range = devices_of_stage(s, stages, devices);
        EXPECT_GT(range.count, 0);
        for (int d = 0; d < devices; ++d) {
          EXPECT_EQ(of.of_device(d) == s, range.contains(d));
        }
      }
    }
  }
}

constexpr PipelineOrder kOrders[] = {PipelineOrder::kGpipe, PipelineOrder::kOneForwardOneBackward,
                                     PipelineOrder::kBreadthFirst};

// [layer] its stage, of as many devices as stages.
std::vector<int> layers_of(PipelineOrder order, int64_t layers, const std::vector<double>& speeds) {
  const int stages = static_cast<int>(speeds.size());
  return divide_into_stages(stages, order, layers, stages, speeds).layers;
}

// A stage that is twice as fast takes four layers while the other takes two. In turns its layers
// stand at 1, 3, 5 and 7 eighths of the way, and the other's at 2 and 6.
TEST(Stages, AFasterOneHasMoreLayers) {
  for (const auto order : {PipelineOrder::kGpipe, PipelineOrder::kOneForwardOneBackward}) {
    EXPECT_EQ(layers_of(order, 6, {2, 1}), (std::vector<int>{0, 0, 0, 0, 1, 1}));
    EXPECT_EQ(layers_of(order, 6, {0.5, 1}), (std::vector<int>{0, 0, 1, 1, 1, 1}));
    // The first takes a fifth of seven in 2.5, the second would take its third in 3.
    EXPECT_EQ(layers_of(order, 7, {2, 1}), (std::vector<int>{0, 0, 0, 0, 0, 1, 1}));
    EXPECT_EQ(layers_of(order, 9, {3, 1, 2}), (std::vector<int>{0, 0, 0, 0, 0, 1, 2, 2, 2}));
  }
  const PipelineOrder in_turns = PipelineOrder::kBreadthFirst;
  EXPECT_EQ(layers_of(in_turns, 6, {2, 1}), (std::vector<int>{0, 1, 0, 0, 1, 0}));
  EXPECT_EQ(layers_of(in_turns, 6, {1, 2}), (std::vector<int>{1, 0, 1, 1, 0, 1}));
  // Five at 1, 3, 5, 7 and 9 tenths, one in the middle, three at 1, 3 and 5 sixths.
  EXPECT_EQ(layers_of(in_turns, 9, {3, 1, 2}), (std::vector<int>{0, 2, 0, 0, 1, 2, 0, 2, 0}));
}

// The one layer that it cannot do without is that of a stage that would end last, of several.
TEST(Stages, TheSlowestHasALayer) {
  const PipelineOrder order = PipelineOrder::kGpipe;
  EXPECT_EQ(layers_of(order, 5, {9, 1, 4}), (std::vector<int>{0, 0, 0, 1, 2}));
  EXPECT_EQ(layers_of(order, 4, {1, 100, 90}), (std::vector<int>{0, 1, 1, 2}));
  EXPECT_EQ(layers_of(order, 4, {100, 1, 1}), (std::vector<int>{0, 0, 1, 2}));
  EXPECT_EQ(layers_of(order, 3, {1e-9, 1, 1e9}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(layers_of(PipelineOrder::kBreadthFirst, 5, {9, 1, 4}),
            (std::vector<int>{0, 0, 1, 2, 0}));
}

TEST(Stages, EqualOnesHaveLayersAsIfNoneHadASpeed) {
  for (const PipelineOrder order : kOrders) {
    const bool in_turns = order == PipelineOrder::kBreadthFirst;
    EXPECT_EQ(layers_of(order, 6, {3, 3, 3, 3}), in_turns ? (std::vector<int>{0, 1, 2, 3, 0, 1})
                                                          : (std::vector<int>{0, 0, 1, 2, 2, 3}));
    for (int stages = 2; stages <= 5; ++stages) {
      for (int64_t layers = stages; layers <= 12; ++layers) {
        const std::vector<double> equal(static_cast<size_t>(stages), 0.1);
        const Stages even = divide_into_stages(stages, order, layers, stages);
        EXPECT_EQ(layers_of(order, layers, equal), even.layers);
        for (int64_t l = 0; l < layers; ++l) {
          EXPECT_EQ(even.of_layer(l), in_turns ? l % stages : l * stages / layers);
        }
      }
    }
  }
}

// No other division ends sooner, and numbers of layers, taken as speeds, divide alike again.
TEST(Stages, LayersEndTogether) {
  constexpr uint32_t kSeed = 24;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  for (int k = 0; k < 3000; ++k) {
    const int stages = 2 + static_cast<int>(random() % 4);
    const auto layers = static_cast<int64_t>(stages + random() % 12);
    const PipelineOrder order = kOrders[k % 3];
    std::vector<double> speeds;
    for (int s = 0; s < stages; ++s) speeds.push_back(1 + static_cast<double>(random() % 8));
    const Stages of = divide_into_stages(stages, order, layers, stages, speeds);
    const std::vector<int64_t> counts = of.layer_counts(layers);
    const auto ends = [&](int s, int64_t more) {
      return static_cast<double>(counts[static_cast<size_t>(s)] + more) /
             speeds[static_cast<size_t>(s)];
    };
    double last = 0;  // of stages with layers to give
    for (int s = 0; s < stages; ++s) {
      ASSERT_GE(counts[static_cast<size_t>(s)], 1);
      if (counts[static_cast<size_t>(s)] > 1) last = std::max(last, ends(s, 0));
    }
    for (int s = 0; s < stages; ++s) EXPECT_GE(ends(s, 1), last) << k;
    EXPECT_EQ(layers_of(order, layers, {counts.begin(), counts.end()}), of.layers) << k;
  }
}

// Two stages of a layer each and two chunks, written out. The first stage waits from the end of its
// second forward until its first gradients come, while the second goes forward, to the head and
// back with the first chunk. What needs no routing is issued ahead.
TEST(PipelineActions, OneForwardOneBackward) {
  const RunShape shape = pipeline_of(2, PipelineOrder::kOneForwardOneBackward, 2, 2);
  const Microbatches one{0, 1}, two{1, 1};
  const ActionList expected = {
      {ActionKind::kEmbed, kForward, -1, one},     {ActionKind::kAttention, kForward, 0, one},
      {ActionKind::kExperts, kForward, 0, one},    {ActionKind::kResidual, kForward, 0, one},
      {ActionKind::kEmbed, kForward, -1, two},     {ActionKind::kAttention, kForward, 0, two},
      {ActionKind::kAttention, kForward, 1, one},  {ActionKind::kExperts, kForward, 0, two},
      {ActionKind::kResidual, kForward, 0, two},   {ActionKind::kExperts, kForward, 1, one},
      {ActionKind::kResidual, kForward, 1, one},   {ActionKind::kHead, kForward, -1, one},
      {ActionKind::kExperts, kBackward, 1, one},   {ActionKind::kAttention, kBackward, 1, one},
      {ActionKind::kAttention, kForward, 1, two},  {ActionKind::kExperts, kBackward, 0, one},
      {ActionKind::kAttention, kBackward, 0, one}, {ActionKind::kEmbed, kBackward, -1, one},
      {ActionKind::kExperts, kForward, 1, two},    {ActionKind::kResidual, kForward, 1, two},
      {ActionKind::kHead, kForward, -1, two},      {ActionKind::kExperts, kBackward, 1, two},
      {ActionKind::kAttention, kBackward, 1, two}, {ActionKind::kExperts, kBackward, 0, two},
      {ActionKind::kAttention, kBackward, 0, two}, {ActionKind::kEmbed, kBackward, -1, two},
  };
  EXPECT_EQ(make_actions(shape, PassExtent::kStep), expected);
}

// The most chunks that a stage has begun forward and not ended backward.
int64_t most_in_flight(const RunShape& shape, const ActionList& actions, int stage) {
  int64_t first = shape.num_layers;
  while (shape.stage_of(first - 1) != stage) --first;
  while (first > 0 && shape.stage_of(first - 1) == stage) --first;
  std::set<int64_t> begun;
  int64_t most = 0;
  for (const Action& action : actions) {
    if (action.kind != ActionKind::kAttention || action.layer != first) continue;
    if (action.phase == kForward) begun.insert(action.microbatches.first);
    if (action.phase == kBackward) begun.erase(action.microbatches.first);
    most = std::max(most, std::ssize(begun));
  }
  return most;
}

// A chunk goes through everything once, in its order, and each stage keeps to its own.
void expect_complete(const RunShape& shape, const ActionList& actions, PassExtent extent) {
  const int64_t width = shape.microbatches / shape.sums.chunks;
  for (int64_t c = 0; c < shape.sums.chunks; ++c) {
    const Microbatches chunk{c * width, width};
    ActionList own, expected = layer_major(shape, extent);
    for (const Action& action : actions) {
      if (action.microbatches == chunk) own.push_back(action);
    }
    for (Action& action : expected) action.microbatches = chunk;
    EXPECT_EQ(own, expected);
  }
  EXPECT_EQ(std::ssize(actions), shape.sums.chunks * std::ssize(layer_major(shape, extent)));
  for (int stage = 0; stage < shape.stages.count; ++stage) {
    ZebraOrders own;
    for (const Action& action : actions) {
      const bool head = action.kind == ActionKind::kHead;
      const int64_t layer = head ? shape.num_layers : action.layer;
      if (shape.stage_of(layer) != stage) continue;
      const bool leaves =
          action.kind == ActionKind::kResidual && shape.zebra && shape.leaves_stage(action.layer);
      if (action.kind == ActionKind::kAttention || head || leaves) own.attention.push_back(action);
      if (action.kind == ActionKind::kExperts && shape.zebra) own.experts.push_back(action);
    }
    const ZebraOrders orders = stage_orders(shape, stage, extent);
    EXPECT_EQ(own.attention, orders.attention);
    EXPECT_EQ(own.experts, orders.experts);
  }
}

void expect_complete(const RunShape& shape) {
  for (const PassExtent extent : {PassExtent::kLayers, PassExtent::kForward, PassExtent::kStep}) {
    expect_complete(shape, make_actions(shape, extent), extent);
  }
}

// Also of stages of which each is half as fast as the one before, or as the one behind it.
TEST(PipelineActions, EveryStageDoesItsWorkInItsOrder) {
  for (const PipelineOrder order : kOrders) {
    for (int stages = 2; stages <= 4; ++stages) {
      for (int64_t layers = stages; layers <= 6; ++layers) {
        for (int64_t chunks = 1; chunks <= 8; ++chunks) {
          RunShape shape = pipeline_of(stages, order, layers, chunks);
          expect_complete(shape);
          for (const double ratio : {0.5, 2.0}) {
            std::vector<double> speeds;
            for (int s = 0; s < stages; ++s) speeds.push_back(std::pow(ratio, s));
            shape.stages = divide_into_stages(stages, order, layers, stages, speeds);
            expect_complete(shape);
          }
        }
      }
    }
  }
}

// Two stages of a layer each and two chunks in zebra's order, written out. While the second stage
// attends to the first chunk, the first has the second chunk's experts. Each forward of experts
// stands where its routing is known, and what leaves the first stage behind those of the next
// chunk; the last layer's experts turn when both chunks are forward.
TEST(PipelineActions, ZebraInStages) {
  RunShape shape = pipeline_of(2, PipelineOrder::kBreadthFirst, 2, 2);
  shape.zebra = true;
  shape.lags = {1, 1, 1};
  const Microbatches one{0, 1}, two{1, 1};
  const ActionList expected = {
      {ActionKind::kEmbed, kForward, -1, one},     {ActionKind::kAttention, kForward, 0, one},
      {ActionKind::kEmbed, kForward, -1, two},     {ActionKind::kAttention, kForward, 0, two},
      {ActionKind::kExperts, kForward, 0, one},    {ActionKind::kExperts, kForward, 0, two},
      {ActionKind::kResidual, kForward, 0, one},   {ActionKind::kAttention, kForward, 1, one},
      {ActionKind::kResidual, kForward, 0, two},   {ActionKind::kAttention, kForward, 1, two},
      {ActionKind::kExperts, kForward, 1, one},    {ActionKind::kResidual, kForward, 1, one},
      {ActionKind::kHead, kForward, -1, one},      {ActionKind::kExperts, kForward, 1, two},
      {ActionKind::kResidual, kForward, 1, two},   {ActionKind::kHead, kForward, -1, two},
      {ActionKind::kExperts, kBackward, 1, one},   {ActionKind::kExperts, kBackward, 1, two},
      {ActionKind::kAttention, kBackward, 1, one}, {ActionKind::kAttention, kBackward, 1, two},
      {ActionKind::kExperts, kBackward, 0, one},   {ActionKind::kExperts, kBackward, 0, two},
      {ActionKind::kAttention, kBackward, 0, one}, {ActionKind::kEmbed, kBackward, -1, one},
      {ActionKind::kAttention, kBackward, 0, two}, {ActionKind::kEmbed, kBackward, -1, two},
  };
  EXPECT_EQ(make_actions(shape, PassExtent::kStep), expected);
}

TEST(PipelineActions, ZebraGoesThroughEverythingInAnyStages) {
  const std::vector<uint8_t> models[] = {{1, 1, 1, 1, 1}, {0, 1, 0, 1, 0}, {1, 1, 1, 0, 0},
                                         {1, 0, 1, 1, 0}, {0, 0, 0, 0, 0}, {1, 1, 1, 1, 0}};
  for (int seed = 0; seed < 3 * 3 * 6 * 8 * 27; ++seed) {
    const int stages = 2 + seed % 3, lags = seed / 432;
    const int64_t chunks = 1 + seed / 54 % 8;
    RunShape shape = pipeline_of(stages, static_cast<PipelineOrder>(seed / 3 % 3), 5, chunks);
    shape.is_moe = models[seed / 9 % 6];
    shape.zebra = true;
    shape.lags = {lags % 3, lags / 3 % 3, lags / 9};
    if (lags_wait_for_each_other(shape.lags, shape.is_moe.back() != 0, chunks)) continue;
    for (const PassExtent extent : {PassExtent::kLayers, PassExtent::kForward, PassExtent::kStep}) {
      expect_complete(shape, make_actions(shape, extent), extent);
    }
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

// What leaves a stage follows the attention of two more chunks of its layer.
TEST(PipelineActions, ZebraSendsOnBehindTwoMoreChunks) {
  RunShape shape = pipeline_of(2, PipelineOrder::kBreadthFirst, 2, 4);
  shape.zebra = true;
  shape.lags = {1, 1, 1};
  std::string order;  // of the first stage's forward
  for (const Action& action : stage_orders(shape, 0, PassExtent::kLayers).attention) {
    order += strf("%s%lld ", action.kind == ActionKind::kResidual ? "r" : "a",
                  (long long)action.microbatches.first);
  }
  EXPECT_EQ(order, "a0 a1 a2 r0 a3 r1 r2 r3 ");
}

// In zebra a stage of 1F1B has twice as many chunks under way, two where it had one, so that both
// kinds of its devices have work.
TEST(PipelineActions, ZebraTakesTwoChunksForOne) {
  RunShape shape = pipeline_of(2, PipelineOrder::kOneForwardOneBackward, 4, 8);
  shape.zebra = true;
  shape.lags = {1, 1, 1};
  std::string order;  // of the first stage's attention
  for (const Action& action : stage_orders(shape, 0, PassExtent::kStep).attention) {
    if (action.kind == ActionKind::kResidual) continue;
    order += strf("%s%lld%lld ", action.phase == kForward ? "f" : "b", (long long)action.layer,
                  (long long)action.microbatches.first);
  }
  EXPECT_EQ(order,
            "f00 f01 f10 f11 f02 f03 f12 f13 b10 b11 b00 b01 f04 f05 f14 f15 b12 b13 b02 b03 "
            "f06 f07 f16 f17 b14 b15 b04 b05 b16 b17 b06 b07 ");
}

TEST(PipelineActions, ChunksInFlight) {
  for (int stages = 2; stages <= 4; ++stages) {
    for (int64_t chunks = 1; chunks <= 8; ++chunks) {
      for (const PipelineOrder order : kOrders) {
        const RunShape shape = pipeline_of(stages, order, 2 * stages, chunks);
        const ActionList actions = make_actions(shape, PassExtent::kStep);
        for (int stage = 0; stage < stages; ++stage) {
          EXPECT_EQ(most_in_flight(shape, actions, stage),
                    chunks_in_flight(order, stages, stage, chunks));
        }
      }
    }
  }
}

// Breadth-first: no other layer of the stage stands between the chunks of one.
TEST(PipelineActions, BreadthFirstTakesAllChunksThroughALayer) {
  const RunShape shape = pipeline_of(2, PipelineOrder::kBreadthFirst, 5, 3);
  std::vector<int64_t> layers;
  for (const Action& action : stage_orders(shape, 0, PassExtent::kStep).attention) {
    if (action.kind == ActionKind::kAttention) layers.push_back(action.layer);
  }
  EXPECT_EQ(layers, (std::vector<int64_t>{0, 0, 0, 2, 2, 2, 4, 4, 4, 4, 4, 4, 2, 2, 2, 0, 0, 0}));
}

}  // namespace
}  // namespace pagoda
