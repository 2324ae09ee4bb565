// Attention by a library: what it is asked, what it finds in memory, and what happens where it
// refuses. The library is made up: it computes with the CPU's ops, document by document, from the
// lists alone. On the emulated GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>

#include "kernels/attention_graph.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/gpu_scratch.h"
#include "kernels/library_choice.h"
#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

TEST(LibraryChoice, NothingIsPreferredThatNobodyMeasured) {
  for (const int major : {7, 8, 9, 10, 12, 13}) {
    EXPECT_EQ(library_choice(major).attention, ComputedBy::kOwnKernel) << major;
    EXPECT_EQ(library_choice(major).experts, ComputedBy::kOwnKernel) << major;
  }
  EXPECT_FALSE(library_attention_is_preferred());
  EXPECT_FALSE(library_experts_are_preferred());
}

TEST(AttentionGraph, AsksForBf16OfWholeVectorsAndOffsetsOf32Bits) {
  const AttentionGraph fits{false, 1, 100, {100, 4, 2, 64, 512}};
  EXPECT_TRUE(library_takes(DType::kBF16, fits));
  EXPECT_FALSE(library_takes(DType::kF32, fits));
  AttentionGraph odd = fits;
  odd.shape.head_dim = 60;
  EXPECT_FALSE(library_takes(DType::kBF16, odd));
  odd = fits;
  odd.shape.qkv_stride = 516;
  EXPECT_FALSE(library_takes(DType::kBF16, odd));
  odd = fits;
  odd.shape.tokens = int64_t{1} << 22;
  EXPECT_FALSE(library_takes(DType::kBF16, odd));  // 2^31 elements
  odd.shape.tokens -= 1;
  EXPECT_TRUE(library_takes(DType::kBF16, odd));
  odd = fits;
  odd.documents = 0;
  EXPECT_FALSE(library_takes(DType::kBF16, odd));
}

// For random cuts with empty documents, the lists give the place of every row of every document.
TEST(AttentionGraph, ListsFindEveryRowOnce) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const AttentionShape shape{static_cast<int64_t>(random() % 400), 6, 2, 8, 88};
    std::vector<int32_t> start{0};
    while (start.back() < shape.tokens) {
      const auto length = static_cast<int32_t>(random() % 3 == 0 ? 0 : random() % 90);
      start.push_back(std::min<int32_t>(static_cast<int32_t>(shape.tokens), start.back() + length));
    }
    const auto documents = std::ssize(start) - 1;
    const AttentionGraph graph = attention_graph(round % 2 == 0, shape, start.data(), documents);
    const std::vector<int32_t> lists = document_lists(shape, start.data(), documents);
    const int64_t n = graph.documents;
    ASSERT_EQ(std::ssize(lists), n + 3 * (n + 1));
    const int32_t *q = lists.data() + n, *out = q + n + 1, *lse = out + n + 1;
    int64_t row = 0, longest = 0;
    for (int64_t d = 0; d < n; ++d) {
      const int64_t length = lists[static_cast<size_t>(d)];
      ASSERT_GT(length, 0);
      ASSERT_EQ(q[d], row * 88);
      ASSERT_EQ(out[d], row * 48);
      ASSERT_EQ(lse[d], row);
      row += length;
      longest = std::max(longest, length);
    }
    ASSERT_EQ(row, shape.tokens);
    ASSERT_EQ(q[n], row * 88);
    ASSERT_EQ(lse[n], row);
    if (n == 1) {
      ASSERT_EQ(graph.rows, shape.tokens);
    } else {
      ASSERT_GE(graph.rows, longest);
      ASSERT_TRUE(graph.rows == 128 || graph.rows < 2 * longest) << graph.rows;
    }
  }
}

class MadeUpLibrary final : public LibraryAttention {
 public:
  Result<int64_t> workspace_bytes(const AttentionGraph&, Stream&) override {
    ++asked;
    if (!takes) return Status(Exit::kUnavailable, "not today");
    return workspace;
  }
  void run(const AttentionGraph& graph, const AttentionMemory& m, Stream& s) override {
    ++ran;
    s.synchronize();  // the lists are there
    std::memset(m.workspace, 0xff, static_cast<size_t>(workspace));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(m.workspace) % 256, 0u);
    for (int64_t d = 0; d < graph.documents; ++d) document(graph, m, d, s);
  }

  bool takes = true;
  int64_t workspace = 1000;
  int asked = 0, ran = 0;

 private:
  static bf16* moved(const void* p, int64_t elements) {
    return static_cast<bf16*>(const_cast<void*>(p)) + elements;
  }
  static void document(const AttentionGraph& graph, const AttentionMemory& m, int64_t d,
                       Stream& s) {
    AttentionShape shape = graph.shape;
    int64_t q = 0, out = 0, row = 0;
    if (!graph.dense()) {
      const int32_t* offsets = m.lists + graph.documents + d;
      shape.tokens = m.lists[d];
      q = offsets[0];
      out = offsets[graph.documents + 1];
      row = offsets[2 * (graph.documents + 1)];
    }
    const int32_t alone[] = {0, static_cast<int32_t>(shape.tokens)};
    std::vector<float> lse(static_cast<size_t>(shape.heads * shape.tokens));
    const auto each_head = [&](auto&& copy) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        copy(m.lse + h * graph.shape.tokens + row, lse.data() + h * shape.tokens);
      }
    };
    const auto bytes = static_cast<size_t>(shape.tokens) * sizeof(float);
    if (!graph.backward) {
      cpu_ops().attention(DType::kBF16, shape, alone, 1, moved(m.q, q), moved(m.k, q),
                          moved(m.v, q), moved(m.out, out), lse.data(), s);
      s.synchronize();
      return each_head([&](float* ours, float* theirs) { std::memcpy(ours, theirs, bytes); });
    }
    each_head([&](float* ours, float* theirs) { std::memcpy(theirs, ours, bytes); });
    cpu_ops().attention_backward(DType::kBF16, shape, alone, 1, moved(m.q, q), moved(m.k, q),
                                 moved(m.v, q), moved(m.out, out), lse.data(), moved(m.dout, out),
                                 moved(m.dq, q), moved(m.dk, q), moved(m.dv, q), s);
    s.synchronize();
  }
};

class LibraryOps : public testing::Test {
 protected:
  static constexpr int64_t kHeads = 4, kKvHeads = 2;

  // Bits of all results of attention and its gradient.
  std::string computed(Ops& ops, DType dt, int64_t dim, const std::vector<int32_t>& start) {
    const AttentionShape shape{start.back(), kHeads, kKvHeads, dim, (kHeads + 2 * kKvHeads) * dim};
    const auto documents = std::ssize(start) - 1;
    TestTensor qkv(dt, shape.tokens * shape.qkv_stride), dqkv(dt, qkv.size());
    TestTensor out(dt, shape.tokens * kHeads * dim), dout(dt, out.size());
    TestTensor lse(DType::kF32, kHeads * shape.tokens);
    qkv.randomise(1);
    dout.randomise(2);
    std::vector<std::byte> scratch(static_cast<size_t>(
        library_attention_bytes(shape.tokens, kHeads, dim) +
        gpu_scratch_bytes({.tokens = shape.tokens, .heads = kHeads, .head_dim = dim})));
    TestLane lane(1);
    lane.stream->use_scratch(scratch);
    const auto part = [&](TestTensor& t, int64_t head) {
      return static_cast<std::byte*>(t.data()) + head * dim * dtype_bytes(dt);
    };
    ops.attention(dt, shape, start.data(), documents, part(qkv, 0), part(qkv, kHeads),
                  part(qkv, kHeads + kKvHeads), out.data(), lse.floats(), *lane.stream);
    ops.attention_backward(dt, shape, start.data(), documents, part(qkv, 0), part(qkv, kHeads),
                           part(qkv, kHeads + kKvHeads), out.data(), lse.floats(), dout.data(),
                           part(dqkv, 0), part(dqkv, kHeads), part(dqkv, kHeads + kKvHeads),
                           *lane.stream);
    lane.stream->synchronize();
    return out.bits() + lse.bits() + dqkv.bits();
  }

  const std::shared_ptr<MadeUpLibrary> library_ = std::make_shared<MadeUpLibrary>();
  const std::unique_ptr<Ops> ops_ = make_emulated_ops(true, 1, {.attention = library_});
  const std::unique_ptr<Ops> own_ = make_emulated_ops(true, 1);
};

// The bits are the library's, and not those of the kernel.
TEST_F(LibraryOps, ItComputesWhatItTakes) {
  for (const std::vector<int32_t>& start :
       {std::vector<int32_t>{0, 37}, {0, 0, 37, 37}, {0, 5, 12, 12, 70}, {0, 1, 2, 3}}) {
    const int before = library_->ran;
    const std::string bits = computed(*ops_, DType::kBF16, 16, start);
    EXPECT_EQ(library_->ran, before + 2);
    EXPECT_TRUE(bits == computed(cpu_ops(), DType::kBF16, 16, start));
  }
  EXPECT_FALSE(computed(*own_, DType::kBF16, 16, {0, 70}) ==
               computed(cpu_ops(), DType::kBF16, 16, {0, 70}));
}

TEST_F(LibraryOps, OurKernelComputesWhatItDoesNot) {
  const std::vector<int32_t> start{0, 5, 12, 70};
  const auto expect_own = [&](DType dt, int64_t dim) {
    EXPECT_TRUE(computed(*ops_, dt, dim, start) == computed(*own_, dt, dim, start)) << dim;
    EXPECT_EQ(library_->ran, 0);
  };
  expect_own(DType::kF32, 16);
  expect_own(DType::kBF16, 10);
  EXPECT_EQ(library_->asked, 0);
  library_->takes = false;
  expect_own(DType::kBF16, 16);
  EXPECT_EQ(library_->asked, 2);
  library_->takes = true;
  library_->workspace = library_attention_bytes(70, kHeads, 16);  // the lists need more
  expect_own(DType::kBF16, 16);
  EXPECT_EQ(library_->asked, 4);
}

// The largest workspace that is taken fits in the scratch that is counted for it.
TEST_F(LibraryOps, TheCountedScratchIsEnough) {
  const std::vector<int32_t> start{0, 5, 12, 70};
  const int64_t counted = library_attention_bytes(70, kHeads, 16);
  library_->workspace = counted - 4 * (3 + 3 * 4) - 2 * 256;
  EXPECT_TRUE(computed(*ops_, DType::kBF16, 16, start) ==
              computed(cpu_ops(), DType::kBF16, 16, start));
  EXPECT_EQ(library_->ran, 2);
}

}  // namespace
}  // namespace pagoda
