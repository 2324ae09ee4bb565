// Attention by blocks: the same bits from every kernel this processor has and for every number of
// threads, also where threads wait for their turn; and what the references of ops_attention_test do
// not see.
#include "kernels/cpu/attention/attention_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/cpu/attention/score_blocks.h"
#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

struct Case {
  int64_t heads, kv_heads, head_dim;
  std::vector<int32_t> starts;
  AttentionShape shape() const {
    return {starts.back(), heads, kv_heads, head_dim, (heads + 2 * kv_heads) * head_dim};
  }
  int64_t out_size() const { return starts.back() * heads * head_dim; }
  std::string text() const {
    return strf("%lld heads on %lld of %lld, %d tokens", static_cast<long long>(heads),
                static_cast<long long>(kv_heads), static_cast<long long>(head_dim), starts.back());
  }
};

// Tails of blocks, of tiles and of heads; documents of more tiles than one; groups of query heads.
const Case kCases[] = {{1, 1, 2, {0, 1}},
                       {2, 1, 40, {0, 31, 33, 97}},
                       {4, 2, 64, {0, 128, 128, 500}},
                       {3, 1, 96, {0, 260, 300}},
                       {4, 1, 128, {0, 700}}};

struct Tensors {
  explicit Tensors(const Case& c)
      : qkv(DType::kBF16, c.shape().tokens * c.shape().qkv_stride),
        out(DType::kBF16, c.out_size()),
        dout(DType::kBF16, c.out_size()),
        dqkv(DType::kBF16, qkv.size()),
        lse(DType::kF32, c.heads * c.shape().tokens),
        delta(DType::kF32, lse.size()) {
    qkv.randomise(11);
    dout.randomise(12);
    delta.randomise(13);
  }
  bf16* at(TestTensor& t, int64_t i = 0) { return static_cast<bf16*>(t.data()) + i; }
  std::string bits() const { return out.bits() + lse.bits() + dqkv.bits(); }

  TestTensor qkv, out, dout, dqkv, lse, delta;
};

void run(const BlockKernel& kernel, const Case& c, Tensors& t, ThreadPool& pool) {
  const AttentionShape shape = c.shape();
  const int64_t k = c.heads * c.head_dim, v = k + c.kv_heads * c.head_dim;
  const AttentionTensors forward{shape,          t.at(t.qkv), t.at(t.qkv, k), t.at(t.qkv, v),
                                 t.at(t.out), t.lse.floats()};
  const AttentionGradients backward{
      shape,          t.at(t.qkv),      t.at(t.qkv, k), t.at(t.qkv, v),  t.at(t.dout),
      t.lse.floats(), t.delta.floats(), t.at(t.dqkv),   t.at(t.dqkv, k), t.at(t.dqkv, v)};
  for (const AttentionSpan& span :
       split_documents(shape, c.starts.data(), std::ssize(c.starts) - 1)) {
    attend_by_blocks(kernel, forward, span, pool);
    attend_backward_by_blocks(kernel, backward, span, pool);
  }
}

class AttentionBlocksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (block_kernels().empty()) GTEST_SKIP() << "this processor has none of the kernels";
    for (const BlockKernel* kernel : block_kernels()) std::printf("kernel: %s\n", kernel->name);
  }
  const BlockKernel& best() const { return *block_kernels().front(); }
};

// Those that sum in the same order; with operands in the form that is best for them, and in pairs.
TEST_F(AttentionBlocksTest, KernelsAgree) {
  ThreadPool pool(2);
  std::vector<BlockKernel> kernels;
  for (const BlockKernel* kernel : block_kernels()) {
    kernels.push_back(*kernel);
    kernels.push_back(*kernel);
    kernels.back().form = StepForm::kPairs;
  }
  for (const Case& c : kCases) {
    std::map<BlockSum, std::string> want;
    for (const BlockKernel& kernel : kernels) {
      Tensors got(c);
      run(kernel, c, got, pool);
      const std::string& bits = want.try_emplace(kernel.sum, got.bits()).first->second;
      EXPECT_TRUE(got.bits() == bits) << kernel.name << ": " << c.text();
    }
  }
}

TEST_F(AttentionBlocksTest, ThreadsDoNotMatter) {
  for (const Case& c : kCases) {
    expect_same_bits([&](Stream& s) {
      Tensors t(c);
      run(best(), c, t, s.pool());
      return t.bits();
    });
  }
}

// Not even by what 2^-126 of the largest bf16 would add.
TEST_F(AttentionBlocksTest, NothingIsSeenOfLaterKeys) {
  const Case c{1, 1, 32, {0, 300}};
  constexpr int64_t kFirst = 140;  // the first row that changes
  ThreadPool pool(2);
  Tensors a(c), b(c);
  for (int64_t i = kFirst * c.shape().qkv_stride; i < b.qkv.size(); ++i) b.qkv.set(i, 3e38);
  for (int64_t t = 0; t < kFirst; ++t) {
    for (Tensors* tensors : {&a, &b}) tensors->qkv.set(t * c.shape().qkv_stride + 64, 0.0);
  }
  run(best(), c, a, pool);
  run(best(), c, b, pool);
  const size_t seen = static_cast<size_t>(kFirst * c.head_dim) * sizeof(bf16);
  EXPECT_TRUE(a.out.bits().substr(0, seen) == b.out.bits().substr(0, seen));
  EXPECT_FALSE(a.out.bits() == b.out.bits()) << "the change should be seen somewhere";
}

TEST_F(AttentionBlocksTest, NaNReachesWhatDependsOnIt) {
  const Case c{1, 1, 32, {0, 200}};
  constexpr int64_t kRow = 150;
  ThreadPool pool(2);
  Tensors t(c);
  t.qkv.set(kRow * c.shape().qkv_stride, NAN);  // a query
  run(best(), c, t, pool);
  for (int64_t row = 0; row < 200; ++row) {
    const bool is_nan = std::isnan(t.out.get(row * c.head_dim + 5));
    EXPECT_EQ(is_nan, row == kRow) << row;
    // Its gradient, and those of the keys that it sees.
    const int64_t at = row * c.shape().qkv_stride;
    EXPECT_EQ(std::isnan(t.dqkv.get(at + 5)), row == kRow) << row;
    EXPECT_EQ(std::isnan(t.dqkv.get(at + c.head_dim + 5)), row <= kRow) << row;
    EXPECT_EQ(std::isnan(t.dqkv.get(at + 2 * c.head_dim + 5)), row <= kRow) << row;
  }
}

// The sum of one key's weight and of 31 that are too far below to count: 2^x for a score of x.
TEST(ScoreBlocksTest, WeightsAreCloseToPowersOfTwo) {
  alignas(64) float scores[kBlockFloats], shrink[kBlock];
  alignas(64) std::byte weights[kStepBytes];
  double worst = 0, where = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    std::fill_n(scores, kBlockFloats, -1000.0f);
    SoftmaxColumns state;
    std::fill_n(state.highest, kBlock, 0.0f);
    std::fill_n(state.sum, kBlock, 0.0f);
    float* const first_key[2] = {scores, scores + 256};
    const auto score = [&](int64_t c) -> float& { return first_key[c / 16][c % 16]; };
    for (int64_t c = 0; c < kBlock; ++c) score(c) = -static_cast<float>(i * kBlock + c) / 331.0f;
    EXPECT_FALSE(softmax_columns(scores, 1, false, 1.0f, state, shrink, StepForm::kPairs, weights));
    for (int64_t c = 0; c < kBlock; ++c) {
      const double want = std::exp2(static_cast<double>(score(c)));
      const double error = std::abs(state.sum[c] / want - 1);
      if (i == 0 && c == 0) {
        EXPECT_EQ(state.sum[c], 1.0f);
      }
      if (error > worst) {
        worst = error;
        where = score(c);
      }
    }
  }
  EXPECT_LT(worst, 2e-7) << "at " << where;  // vector.h
}

// Earlier sums shrink by what the highest score grows.
TEST(ScoreBlocksTest, EarlierSumsShrink) {
  alignas(64) float scores[kBlockFloats], shrink[kBlock];
  alignas(64) std::byte weights[kStepBytes];
  std::fill_n(scores, kBlockFloats, 3.0f);
  SoftmaxColumns state;
  std::fill_n(state.highest, kBlock, 1.0f);
  std::fill_n(state.sum, kBlock, 8.0f);
  EXPECT_TRUE(softmax_columns(scores, 1, false, 1.0f, state, shrink, StepForm::kPairs, weights));
  for (int64_t c = 0; c < kBlock; ++c) {
    EXPECT_EQ(shrink[c], 0.25f);
    EXPECT_EQ(state.highest[c], 3.0f);
    EXPECT_EQ(state.sum[c], 8.0f * 0.25f + kBlock);
  }
}

}  // namespace
}  // namespace pagoda
