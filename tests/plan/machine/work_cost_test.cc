// The time of each piece of work against operations and bytes counted by hand, for a machine's
// tasks and for passes through a layer.
#include "plan/machine/work_cost.h"

#include <gtest/gtest.h>

#include "plan/machine/pass_cost.h"
#include "plan/machine/task_costs.h"
#include "tests/testing/plan/piper_model.h"

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
       // Four of six products read a matrix; all gradients are added to sums in fp32.
       {TaskKind::kExpertBackward, 2 * 6 * kMatrix, 0, 2 * (4 * kD + 5 * kFfn),
        2 * 4 * kMatrix + 2 * 4 * 3 * kMatrix},
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
        2 * 6 * kMatrix + 2 * 4 * 3 * kMatrix}},
      0);
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

// A GPU of rates that all count.
MachineSheet gpu() {
  MachineSheet sheet = only(Rate::kLaunches);
  MachineSheet::Device& d = sheet.device;
  d.gemm_tflops = 100;
  d.attention_tflops = 20;
  d.memory_gb_s = 1000;
  d.weight_gb_s = 500;
  d.launch_us = 5;
  return sheet;
}

TEST(PassCost, OfTokensIsCountedByHand) {
  const ModelCost model = model_cost(shape()).take();
  const MachineSheet sheet = gpu();
  const PassClock clock(sheet, model, 512);
  const double launch = 5e-6;
  const auto seconds = [](double flops, double scores, double bytes) {
    return flops / 100e12 + scores / 20e12 + bytes / 1000e9;
  };
  const TokenPass dense = clock.tokens(model.layers[0], false);
  const double dense_s =
      seconds(2 * (kProjections + 3 * kDenseMatrix), 2 * kScoreProduct, kAttentionBytes + 8 * kD);
  EXPECT_NEAR(dense.token.forward_s, dense_s, 1e-12 * dense_s);
  const double dense_once_s = 2 * (kProjections + 3 * kDenseMatrix) / 500e9 + 2 * launch;
  EXPECT_NEAR(dense.once.forward_s, dense_once_s, 1e-12 * dense_once_s);
  // Two choices of 16 bytes; router and shared experts; the residual.
  const TokenPass moe = clock.tokens(model.layers[1], false);
  const double moe_s = seconds(2 * (kProjections + kRouter + kShared), 2 * kScoreProduct,
                               kAttentionBytes + 12 * kD + 2 * 16 + 8 * kD);
  EXPECT_NEAR(moe.token.forward_s, moe_s, 1e-12 * moe_s);
  const double back_s = seconds(4 * (kProjections + kRouter + kShared) + 2 * kRouter,
                                5 * kScoreProduct, 2 * kAttentionBytes + 36 * kD + 2 * 16);
  EXPECT_NEAR(moe.token.backward_s, back_s, 1e-12 * back_s);
  const double again_s = seconds(2 * (3 * kProjections + 3 * kRouter + 8 * kShared / 3),
                                 7 * kScoreProduct, 3 * kAttentionBytes + 36 * kD + 2 * 16);
  EXPECT_NEAR(clock.tokens(model.layers[1], true).token.backward_s, again_s, 1e-12 * again_s);
}

TEST(PassCost, OfRowsIsCountedByHand) {
  const ModelCost model = model_cost(shape()).take();
  const MachineSheet sheet = gpu();
  const PassClock clock(sheet, model, 512);
  const RowPass rows = clock.experts(model.layers[1], true);
  const double row_s = 2 * 3 * kMatrix / 100e12 + 2 * (2 * kD + 3 * kFfn) / 1000e9;
  const double back_s = 2 * 8 * kMatrix / 100e12 + 2 * (4 * kD + 5 * kFfn) / 1000e9;
  EXPECT_NEAR(rows.row.forward_s, row_s, 1e-12 * row_s);
  EXPECT_NEAR(rows.row.backward_s, back_s, 1e-12 * back_s);
  EXPECT_NEAR(rows.reading.forward_s, 2 * 3 * kMatrix / 500e9, 1e-18);
  EXPECT_NEAR(rows.reading.backward_s, (2 * 6 + 8 * 3) * kMatrix / 500e9, 1e-18);
  EXPECT_DOUBLE_EQ(rows.group.forward_s, 5e-6);
  const RowPass copies = clock.copies(model.layers[1]);
  EXPECT_DOUBLE_EQ(copies.row.forward_s, 14 * kD / 1000e9);
  EXPECT_DOUBLE_EQ(copies.row.backward_s, 18 * kD / 1000e9);
  EXPECT_DOUBLE_EQ(copies.copy.both_s(), 4 * 5e-6);
  // A quarter of each expert: whole rows go in and out.
  const RowPass part = clock.experts(model.layers[1], true, 0.25);
  const double part_s = 2 * 3 * kMatrix / 4 / 100e12 + 2 * (2 * kD + 3 * kFfn / 4) / 1000e9;
  EXPECT_NEAR(part.row.forward_s, part_s, 1e-12 * part_s);
  EXPECT_NEAR(part.reading.forward_s, 2 * 3 * kMatrix / 4 / 500e9, 1e-18);
}

// Groups of at most 16 blocks of 256 rows, of one block on the CPU.
TEST(PassCost, CountsGroupsOfRows) {
  const ModelCost model = model_cost(shape()).take();
  MachineSheet sheet = gpu();
  const auto expect = [&](double rows, double groups, double readings, double copies) {
    const GroupedRows grouped = PassClock(sheet, model, 512).grouped(rows, 8);
    EXPECT_EQ(grouped.rows, rows);
    EXPECT_EQ(grouped.groups, groups) << rows;
    EXPECT_EQ(grouped.readings, readings) << rows;
    EXPECT_EQ(grouped.copies, copies) << rows;
  };
  expect(0, 0, 0, 0);
  expect(3, 1, 3, 3 * (1.0 / 4096 + 1) / 16);      // three experts have a row
  expect(8 * 256, 1, 8, 8 * (1.0 / 16 + 1) / 16);  // a block of each
  expect(8 * 1024, 2, 8, 8 * (1.0 / 4 + 1) / 4);   // four blocks of each
  expect(8 * 4096, 8, 8, 8 * 2);                   // a whole group of each
  expect(8 * 8192, 16, 16, 8 * 3);                 // two
  sheet.device.kind = Processor::kCpu;
  expect(8 * 256, 8, 8, 8 * 2);
  expect(8 * 1024, 32, 32, 8 * 5);
}

TEST(PassCost, OfTablesIsCountedByHand) {
  const ModelCost model = model_cost(shape()).take();
  const MachineSheet sheet = gpu();
  const TokenPass head = PassClock(sheet, model, 512).head();
  EXPECT_NEAR(head.token.forward_s, 6 * kTable / 100e12 + 12 * kVocab / 1000e9, 1e-18);
  EXPECT_EQ(head.token.backward_s, 0);
  const TokenPass embedding = PassClock(sheet, model, 512).embedding();
  EXPECT_NEAR(embedding.token.both_s(), 12 * kD / 1000e9, 1e-18);
  const ModelCost paper = piper_cost({2, 1024, 16, 8, 2, 512});
  EXPECT_EQ(PassClock(sheet, paper, 512).head().seconds(100).both_s(), 0);
  EXPECT_EQ(PassClock(sheet, paper, 512).embedding().seconds(100).both_s(), 0);
}

}  // namespace
}  // namespace pagoda
