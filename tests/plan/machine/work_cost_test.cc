// The time of each piece of work against operations and bytes counted by hand.
#include "plan/machine/work_cost.h"

#include <gtest/gtest.h>

#include "plan/machine/task_costs.h"

namespace pagoda {
namespace {

constexpr double kD = 1024, kHeads = 16, kHeadDim = 64, kKvHeads = 4, kFfn = 512, kDenseFfn = 4096;
constexpr double kSharedFfn = 256, kExperts = 8, kVocab = 2000, kLen = 512;

// A dense layer, and one of 8 experts and a shared one.
ModelShape shape() {
  ModelShape m;
  m.vocab_size = 2000;
  m.hidden_size = 1024;
  m.is_moe = {0, 1};
  m.attention = {.heads = 16, .kv_heads = 4, .head_dim = 64, .value_head_dim = 64};
  m.dense_ffn = 4096;
  m.num_experts = 8;
  m.experts_per_token = 2;
  m.expert_ffn = 512;
  m.shared_ffn = 256;
  return m;
}

RunShape run() {
  RunShape run;
  run.num_layers = 2;
  run.is_moe = {0, 1};
  run.num_experts = 8;
  run.hidden_size = 1024;
  run.experts_per_token = 2;
  run.microbatches = 4;
  run.microbatch_tokens = 2048;
  run.row_block = 256;
  run.records = {{100, 1, -1, 0, 1000}, {300, 1, 0, 0, 3000}};
  return run;
}

// A GPU for which all but one of the resources take no time.
enum class Rate { kProducts, kScores, kMemory, kWeights, kLaunches };
MachineSheet only(Rate rate) {
  constexpr double kAtOnce = 1e200;
  MachineSheet sheet;
  MachineSheet::Device& d = sheet.device;
  d.kind = Processor::kGpu;
  d.peak_tflops = 1;
  d.gemm_tflops = rate == Rate::kProducts ? 1 : kAtOnce;
  d.attention_tflops = rate == Rate::kScores ? 1 : kAtOnce;
  d.memory_gb_s = rate == Rate::kMemory ? 1 : kAtOnce;
  d.weight_gb_s = rate == Rate::kWeights ? 1 : kAtOnce;
  d.launch_us = rate == Rate::kLaunches ? 1 : 0;
  sheet.host.copy_gb_s = sheet.host.checksum_gb_s = sheet.host.adam_gb_s = 1;
  sheet.disk.read_gb_s = sheet.disk.write_gb_s = 1;
  return sheet;
}

// What a unit of a kind of task takes of each resource, and the weights beside it.
struct Counted {
  TaskKind kind;
  double flops, scores, bytes, weight_bytes;
};

void expect_counted(const std::vector<Counted>& all, double kept_share) {
  CostSettings work;
  work.sequence_len = 512;
  work.state_on_device = true;
  work.kept_share = kept_share;
  const auto cost = [&](Rate rate, TaskKind kind) {
    return task_costs(only(rate), shape(), run(), work).of(kind);
  };
  for (const Counted& c : all) {
    SCOPED_TRACE(testing::Message() << "task " << static_cast<int>(c.kind));
    const auto near = [](double seconds, double rate, double expected) {
      EXPECT_NEAR(seconds * rate, expected, 1e-12 * expected + 1e-100);
    };
    near(cost(Rate::kProducts, c.kind).unit_s, 1e12, c.flops);
    near(cost(Rate::kScores, c.kind).unit_s, 1e12, c.scores);
    near(cost(Rate::kMemory, c.kind).unit_s, 1e9, c.bytes);
    near(cost(Rate::kWeights, c.kind).fixed_s, 1e9, c.weight_bytes);
    near(cost(Rate::kLaunches, c.kind).fixed_s, 1e6, 1);
  }
}

// Queries and outputs of all heads, keys and values of a quarter of them.
constexpr double kProjections = 2 * kD * kHeads * kHeadDim + 2 * kD * kKvHeads * kHeadDim;
// Queries x keys, or probabilities x values: a token sees half of the tokens before it, and itself.
constexpr double kScoreProduct = 2 * kHeads * kHeadDim * (kLen + 1) / 2;
// Residual and norm, in and out; queries, keys and values of as many heads; the result.
constexpr double kAttentionBytes = 2 * (4 * kD + 3 * 2 * kHeads * kHeadDim);
constexpr double kMatrix = kD * kFfn, kDenseMatrix = kD * kDenseFfn, kShared = 3 * kD * kSharedFfn;
constexpr double kRouter = kD * kExperts, kTable = kVocab * kD;

TEST(WorkCost, OfAForwardIsCountedByHand) {
  expect_counted({{TaskKind::kAttention, 2 * kProjections, 2 * kScoreProduct, kAttentionBytes,
                   2 * kProjections},
                  {TaskKind::kDenseMlp, 2 * 3 * kDenseMatrix, 0, 8 * kD, 2 * 3 * kDenseMatrix},
                  {TaskKind::kRoute, 2 * (kRouter + kShared), 0, 12 * kD, 2 * (kRouter + kShared)},
                  {TaskKind::kIndex, 0, 0, 16, 0},
                  {TaskKind::kResidual, 0, 0, 8 * kD, 0},
                  {TaskKind::kDispatch, 0, 0, 4 * kD, 0},
                  {TaskKind::kExpert, 2 * 3 * kMatrix, 0, 2 * (2 * kD + 3 * kFfn), 2 * 3 * kMatrix},
                  {TaskKind::kCombine, 0, 0, 10 * kD, 0},
                  {TaskKind::kEmbed, 0, 0, 4 * kD, 0},
                  // Logits in fp32 and in bf16, forward and backward.
                  {TaskKind::kHead, 3 * 2 * kTable, 0, 2 * kVocab * (4 + 2), 3 * 2 * kTable}},
                 0);
}

// Two products for each of the forward's: five of scores, whose probabilities are not kept.
TEST(WorkCost, OfABackwardIsCountedByHand) {
  expect_counted(
      {{TaskKind::kAttentionBackward, 2 * 2 * kProjections, 5 * kScoreProduct, 2 * kAttentionBytes,
        2 * 2 * kProjections},
       {TaskKind::kDenseMlpBackward, 2 * 6 * kDenseMatrix, 0, 24 * kD, 2 * 6 * kDenseMatrix},
       {TaskKind::kRouteReplay, 2 * kRouter, 0, 12 * kD, 2 * kRouter},
       {TaskKind::kRouteBackward, 2 * 2 * (kRouter + kShared), 0, 24 * kD,
        2 * 2 * (kRouter + kShared)},
       {TaskKind::kDispatchBackward, 0, 0, 8 * kD, 0},
       // Four of six products read a matrix; all gradients are written as sums in fp32.
       {TaskKind::kExpertBackward, 2 * 6 * kMatrix, 0, 2 * (4 * kD + 5 * kFfn),
        2 * 4 * kMatrix + 4 * 3 * kMatrix},
       {TaskKind::kCombineBackward, 0, 0, 10 * kD, 0},
       {TaskKind::kEmbedBackward, 0, 0, 8 * kD, 0},
       {TaskKind::kGradient, 0, 0, 4 + 2, 0},
       // Gradient and weight read, weight written; 10 bytes of state both.
       {TaskKind::kAdam, 0, 0, 3 * 2 + 2 * 10, 0}},
      1);
}

// Attention's forward once more, and gate and up of an MLP.
TEST(WorkCost, OfABackwardThatComputesAgainIsMore) {
  expect_counted(
      {{TaskKind::kAttentionBackward, 3 * 2 * kProjections, 7 * kScoreProduct, 3 * kAttentionBytes,
        3 * 2 * kProjections},
       {TaskKind::kDenseMlpBackward, 2 * 8 * kDenseMatrix, 0, 24 * kD, 2 * 8 * kDenseMatrix},
       {TaskKind::kRouteBackward, 2 * (2 * kRouter + 8 * kShared / 3), 0, 24 * kD,
        2 * (2 * kRouter + 8 * kShared / 3)},
       {TaskKind::kExpertBackward, 2 * 8 * kMatrix, 0, 2 * (4 * kD + 5 * kFfn),
        2 * 6 * kMatrix + 4 * 3 * kMatrix}},
      0);
}

// In place of a row that is written, a sum is read and written.
TEST(WorkCost, OfExpertsThatAddInPlaceIsThatOfSums) {
  CostSettings work;
  work.sequence_len = 512;
  RunShape adds = run();
  adds.in_place = adds.experts_in_order = true;
  for (const TaskKind kind : {TaskKind::kExpert, TaskKind::kExpertBackward}) {
    const auto bytes = [&](const RunShape& of) {
      return 1e9 * task_costs(only(Rate::kMemory), shape(), of, work).of(kind).unit_s;
    };
    EXPECT_NEAR(bytes(adds) - bytes(run()), (2 * 4 - 2) * kD, 1e-9 * kD);
  }
}

// Scores of a short sequence are slower: half as fast where the sheet says so.
TEST(WorkCost, OfScoresGrowsForShortSequences) {
  MachineSheet sheet = only(Rate::kScores);
  const double long_s = WorkClock(sheet, kLen).cost({.score_flops = 1e12}, 0, 0).unit_s;
  sheet.device.attention_half_tokens = kLen;
  EXPECT_DOUBLE_EQ(long_s, 1);
  EXPECT_DOUBLE_EQ(WorkClock(sheet, kLen).cost({.score_flops = 1e12}, 0, 0).unit_s, 2);
}

TEST(WorkCost, OfUpdatesIsBytesOverRates) {
  MachineSheet sheet = only(Rate::kMemory);
  sheet.host.adam_gb_s = 2;
  sheet.host.copy_gb_s = 4;
  const WorkClock clock(sheet, kLen);
  EXPECT_DOUBLE_EQ(clock.device_updates(26, 0).seconds(1e9), 26);
  EXPECT_DOUBLE_EQ(clock.host_updates(26).seconds(1e9), 13);
  EXPECT_DOUBLE_EQ(clock.copy().seconds(1e9), 0.25);
  sheet.device.adam_gb_s = 5;
  EXPECT_DOUBLE_EQ(clock.device_updates(26, 0).seconds(1e9), 5.2);
  EXPECT_DOUBLE_EQ(WorkClock::link(5, 20).seconds(1e9), 0.2 + 20e-6);
}

}  // namespace
}  // namespace pagoda
