// A run's budget has exactly the memory that a GPU's ops take: each op, emulated, runs in calls of
// random sizes on a stream with just the scratch of gpu_scratch_bytes().
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "kernels/cuda/adam.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/gpu_scratch.h"
#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

constexpr int kSizes = 6;

class GpuScratch : public testing::Test {
 protected:
  int64_t pick(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  // `call` fits in the scratch for `sizes`, which are of its op alone.
  void expect_enough(const OpSizes& sizes, const std::function<void(Stream& s)>& call) {
    std::vector<std::byte> scratch(static_cast<size_t>(gpu_scratch_bytes(sizes)));
    TestLane lane(1);
    lane.stream->use_scratch(scratch);
    call(*lane.stream);
    lane.stream->synchronize();
  }
  std::vector<int32_t> random_experts(int64_t n, int64_t num_experts) {
    std::vector<int32_t> experts;
    for (int64_t i = 0; i < n; ++i) {
      experts.push_back(static_cast<int32_t>(pick(0, num_experts - 1)));
    }
    return experts;
  }

  std::mt19937_64 random_{5};
  const std::unique_ptr<Ops> ops_ = make_emulated_ops(true, 2);
};

TEST_F(GpuScratch, Rope) {
  for (const int64_t dim : {2, 64, 128}) {
    TestTensor x(DType::kF32, 3 * dim);
    const std::vector<int32_t> positions{0, 1, 2};
    expect_enough({.tokens = 3, .head_dim = dim}, [&](Stream& s) {
      ops_->rope(DType::kF32, positions.data(), {1e4}, 3, 1, dim, dim, dim, false, x.data(), s);
    });
  }
}

// Also of as many documents as there are tokens.
TEST_F(GpuScratch, Attention) {
  for (int i = 0; i < kSizes; ++i) {
    const DType dt = kDTypes[i % 2];
    const AttentionShape shape{pick(1, 40), 4, 2, 16, 8 * 16};
    std::vector<int32_t> start{0};
    while (start.back() < shape.tokens) {
      const int64_t most = i < 2 ? 1 : shape.tokens;
      start.push_back(static_cast<int32_t>(std::min(shape.tokens, start.back() + pick(1, most))));
    }
    const auto documents = std::ssize(start) - 1;
    TestTensor qkv(dt, shape.tokens * shape.qkv_stride), out(dt, shape.tokens * 64);
    TestTensor dqkv(dt, qkv.size()), lse(DType::kF32, 4 * shape.tokens);
    qkv.randomise(1);
    const auto part = [&](TestTensor& t, int64_t head) {
      return static_cast<std::byte*>(t.data()) + head * 16 * dtype_bytes(dt);
    };
    expect_enough({.tokens = shape.tokens, .heads = 4, .head_dim = 16}, [&](Stream& s) {
      ops_->attention(dt, shape, start.data(), documents, part(qkv, 0), part(qkv, 4), part(qkv, 6),
                      out.data(), lse.floats(), s);
      ops_->attention_backward(dt, shape, start.data(), documents, part(qkv, 0), part(qkv, 4),
                               part(qkv, 6), out.data(), lse.floats(), out.data(), part(dqkv, 0),
                               part(dqkv, 4), part(dqkv, 6), s);
    });
  }
}

TEST_F(GpuScratch, Routing) {
  for (int i = 0; i < kSizes; ++i) {
    const int64_t tokens = pick(1, 700), e = pick(1, 70), k = pick(1, std::min<int64_t>(e, 8));
    TestTensor logits(DType::kF32, tokens * e), weights(DType::kF32, tokens * k);
    logits.randomise(2);
    std::vector<int32_t> experts(static_cast<size_t>(tokens * k)), counts(static_cast<size_t>(e));
    std::vector<double> sums(static_cast<size_t>(e));
    expect_enough({.tokens = tokens, .num_experts = e}, [&](Stream& s) {
      RouterShape shape;
      shape.num_experts = e;
      shape.k = k;
      shape.sigmoid = i % 2 == 1;
      ops_->route(shape, logits.floats(), DType::kF32, nullptr, nullptr, tokens, false,
                  logits.floats(), experts.data(), weights.floats(), counts.data(), sums.data(),
                  s);
    });
    const std::vector<int32_t> chosen = random_experts(tokens * k, e);
    std::vector<int64_t> first(static_cast<size_t>(e));
    for (int64_t j = 1; j < e; ++j) {
      first[j] = first[j - 1] + std::count(chosen.begin(), chosen.end(), j - 1);
    }
    std::vector<int32_t> rows(chosen.size()), choices(chosen.size());
    expect_enough({.tokens = tokens, .num_experts = e, .experts_per_token = k}, [&](Stream& s) {
      ops_->index_rows(chosen.data(), tokens, k, e, first.data(), rows.data(), choices.data(), s);
    });
    EXPECT_EQ(std::count(choices.begin(), choices.end(), 0), 1);
  }
}

TEST_F(GpuScratch, GradientsAndLosses) {
  for (int i = 0; i < kSizes; ++i) {
    const int64_t n = i == 0 ? 4096 : pick(1, 20000), tokens = pick(1, 300);
    TestTensor g(DType::kF32, n), out(DType::kBF16, n);
    g.randomise(3);
    double sum = -1;
    expect_enough({.gradient_elements = n}, [&](Stream& s) {
      ops_->finish_gradient(DType::kBF16, g.floats(), n, out.data(), &sum, s);
    });
    EXPECT_GT(sum, 0);
    TestTensor logits(DType::kF32, tokens * 8), weight(DType::kF32, tokens);
    logits.randomise(4);
    weight.fill(1);
    const std::vector<int32_t> targets(static_cast<size_t>(tokens), 3);
    double loss = 0;
    expect_enough({.tokens = tokens}, [&](Stream& s) {
      ops_->cross_entropy(DType::kF32, logits.floats(), targets.data(), weight.floats(), tokens, 8,
                          1, logits.data(), &loss, s);
    });
    EXPECT_GT(loss, 0);
  }
}

TEST_F(GpuScratch, Adam) {
  for (const int64_t count : {1, 4, 5, 33}) {
    std::vector<AdamSpan> spans;
    for (int64_t i = 0; i < count; ++i) spans.push_back({10 * i, 10 * (i + 1), i % 2 == 0});
    const StateLayout layout(StateFormat::kFp32, DType::kF32, 10 * count);
    std::vector<std::byte> state(static_cast<size_t>(layout.bytes));
    TestTensor weights(DType::kF32, 10 * count), grad(DType::kF32, 10 * count);
    weights.fill(1);
    grad.randomise(5);
    int32_t finite = 0;
    expect_enough({.spans = count}, [&](Stream& s) {
      emulated::adam_update_on_device({.lr = 0.1, .t = 1},
                                      {layout, spans, weights.data(), state.data()}, grad.data(),
                                      1, &finite, s);
    });
    EXPECT_EQ(finite, 1);
  }
}

TEST_F(GpuScratch, AnOpThatWantsMoreIsABug) {
  std::vector<std::byte> scratch(128);
  TestLane lane(1);
  lane.stream->use_scratch(scratch);
  OpScratch of_op(*lane.stream, "rope");
  EXPECT_EQ(of_op.take(1), scratch.data());
  EXPECT_EQ(of_op.take(64), scratch.data() + 64);
  EXPECT_EQ(OpScratch(*lane.stream, "rope").take(128), scratch.data()) << "the next op's";
  EXPECT_DEATH(of_op.take(1), "rope takes 192 bytes for itself, its stream has 128");
}

}  // namespace
}  // namespace pagoda
