// What kernels keep beside what they are given, against the buffers that their threads hold after
// calls: never more than is said, and, where a bound is meant to be tight, not much less.
#include "kernels/working_memory.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/bytes.h"
#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/products/products.h"
#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

constexpr int kThreads = 2;

// Scratch of all threads of a lane, which compute nothing meanwhile.
int64_t held_by(const TestLane& lane) {
  std::vector<int64_t> held(kThreads);
  lane.stream->enqueue([&] {
    lane.pool->parallel_for(kThreads, [&](int64_t i) {
      held[static_cast<size_t>(i)] = held_scratch_bytes();
    });
  });
  lane.stream->synchronize();
  return std::accumulate(held.begin(), held.end(), int64_t{0});
}

struct Attention {
  int64_t heads, kv_heads, head_dim, documents, length;
  int64_t tokens() const { return documents * length; }
  std::string text() const {
    return strf("%lld of %lld heads of %lld, %lld documents of %lld", (long long)kv_heads,
                (long long)heads, (long long)head_dim, (long long)documents, (long long)length);
  }
};

void attend(DType dt, const Attention& a, Stream& s) {
  const int64_t width = a.heads * a.head_dim, kv_width = a.kv_heads * a.head_dim;
  const AttentionShape shape{a.tokens(), a.heads, a.kv_heads, a.head_dim, width + 2 * kv_width};
  TestTensor qkv(dt, a.tokens() * shape.qkv_stride), dqkv(dt, qkv.size());
  TestTensor out(dt, a.tokens() * width), dout(dt, out.size());
  TestTensor lse(DType::kF32, a.heads * a.tokens());
  qkv.randomise(1);
  dout.randomise(2);
  std::vector<int32_t> starts;
  for (int64_t d = 0; d <= a.documents; ++d) starts.push_back(static_cast<int32_t>(d * a.length));
  const auto at = [&](TestTensor& t, int64_t column) {
    return static_cast<std::byte*>(t.data()) + column * dtype_bytes(dt);
  };
  cpu_ops().attention(dt, shape, starts.data(), a.documents, at(qkv, 0), at(qkv, width),
                      at(qkv, width + kv_width), out.data(), lse.floats(), s);
  cpu_ops().attention_backward(dt, shape, starts.data(), a.documents, at(qkv, 0), at(qkv, width),
                               at(qkv, width + kv_width), out.data(), lse.floats(), dout.data(),
                               at(dqkv, 0), at(dqkv, width), at(dqkv, width + kv_width), s);
  s.synchronize();
}

void multiply(DType dt, int64_t n, int64_t in, int64_t out, Stream& s) {
  TestTensor x(dt, n * in), w(dt, in * out), dy(dt, n * out), y(dt, n * out), dx(dt, n * in);
  TestTensor dw(DType::kF32, in * out);
  cpu_ops().linear(dt, x.data(), w.data(), n, in, out, dt, y.data(), s);
  cpu_ops().linear_backward_input(dt, dy.data(), w.data(), n, in, out, dt, dx.data(), s);
  cpu_ops().linear_backward_weight(dt, dy.data(), x.data(), n, in, out, false, dw.floats(), s);
  s.synchronize();
}

int64_t bytes_of(const ScratchNeed& need) {
  return need.left_bytes + need.packed_bytes + need.sums_bytes + kThreads * need.thread_bytes;
}

// Many short documents fill a span with blocks as one long document does.
TEST(WorkingMemoryTest, AttentionByBlocksHoldsWhatItSays) {
  if (block_kernels().empty()) GTEST_SKIP() << "this processor has none of the kernels";
  const Attention many{2, 2, 256, 70, 1}, wide{16, 16, 128, 9, 130}, one{2, 1, 32, 1, 8200};
  for (const Attention& a : {many, wide, one}) {
    const TestLane lane(kThreads);
    attend(DType::kBF16, a, *lane.stream);
    const int64_t said = bytes_of(attention_scratch(
        attention_kernel(DType::kBF16)->form, a.head_dim, most_span_blocks(a.tokens(), a.length)));
    const int64_t held = held_by(lane);
    EXPECT_LE(held, said) << a.text();
    // A head of 64 blocks of 256 is more than the budget: nothing is left to round to.
    if (a.head_dim == 256) {
      EXPECT_GT(held, 0.95 * static_cast<double>(said)) << a.text();
    }
  }
}

TEST(WorkingMemoryTest, ProductsByBlocksHoldWhatTheySay) {
  if (block_kernels().empty()) GTEST_SKIP() << "this processor has none of the kernels";
  const TestLane lane(kThreads);
  multiply(DType::kBF16, 256, 2048, 4096, *lane.stream);
  multiply(DType::kBF16, 64, 4096, 2048, *lane.stream);  // all columns of a stripe at once
  multiply(DType::kBF16, 256, 4096, 64, *lane.stream);
  const int64_t said = bytes_of(products_scratch(4096)), held = held_by(lane);
  EXPECT_LE(held, said);
  EXPECT_GT(held, 0.95 * static_cast<double>(said));
}

// Either type, by blocks and without, on the threads of one device.
TEST(WorkingMemoryTest, ADeviceHoldsNoMoreThanIsSaid) {
  const Attention calls[] = {{2, 2, 256, 70, 1}, {8, 2, 64, 3, 200}, {4, 2, 128, 1, 1300}};
  for (const DType dt : kDTypes) {
    const TestLane lane(kThreads);
    KernelSizes sizes;
    sizes.dtype = dt;
    sizes.input_dim = 3000;
    sizes.row_dim = 3000;
    for (const Attention& a : calls) {
      attend(dt, a, *lane.stream);
      sizes.head_dim = std::max(sizes.head_dim, a.head_dim);
      sizes.heads = std::max(sizes.heads, a.heads);
      sizes.tokens = std::max(sizes.tokens, a.tokens());
      sizes.document_len = std::max(sizes.document_len, a.length);
    }
    multiply(dt, 300, 3000, 200, *lane.stream);
    multiply(dt, 300, 200, 40, *lane.stream);
    EXPECT_LE(held_by(lane), kernel_scratch_bytes(sizes, kThreads)) << dtype_name(dt);
  }
}

}  // namespace
}  // namespace pagoda
