// Products of bf16 by blocks: every kernel this processor has gives, bit by bit, the sums that
// kernels/cpu/products/block_kernel.h defines for it, whatever the shape, the alignment and the
// number of threads; and those are close to sums in double.
#include "kernels/cpu/products/products.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "kernels/cpu/products/library_matmul.h"
#include "kernels/cpu/products/operands.h"
#include "tests/testing/lowered_kernel.h"
#include "tests/testing/op_testing.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

struct Size {
  int64_t n, in, out;
};
// Tails of rows, depth and columns; rows that are multiplied as they lie and packed; more than one
// slab of depth, stripe of columns and chunk of rows.
const Size kSizes[] = {{1, 1, 1},      {5, 7, 3},     {1, 32, 32},    {16, 64, 48},  {33, 96, 80},
                       {64, 256, 32},  {65, 288, 96}, {100, 320, 30}, {257, 40, 64}, {300, 544, 72},
                       {70, 2080, 33}, {130, 33, 544}};

float flush(float v) { return std::abs(v) < FLT_MIN ? std::copysign(0.0f, v) : v; }

// The sum of left(p) * right(p) for p in [0, depth).
template <typename Left, typename Right>
float defined_sum(BlockSum order, int64_t depth, Left&& left, Right&& right) {
  float sum = 0;
  const auto add = [&](int64_t p, float& to) {
    to = flush(std::fmaf(flush(left(p)), flush(right(p)), to));
  };
  if (order == BlockSum::kOneChain) {
    for (int64_t p = 0; p < depth; p += 2) {
      if (p + 1 < depth) add(p + 1, sum);
      add(p, sum);
    }
    return sum;
  }
  for (int64_t step = 0; step < depth; step += kBlock) {
    float chain[2] = {0, 0};
    for (int64_t p = step; p < std::min(depth, step + kBlock); ++p) add(p, chain[p % 2]);
    sum = flush(sum + flush(chain[0] + chain[1]));
  }
  return sum;
}

// Normal numbers, every eleventh far smaller, so that products and sums are subnormal; some zeros.
TestTensor operand(int64_t n, uint64_t seed, int64_t offset) {
  TestTensor t(DType::kBF16, n, offset);
  t.randomise(seed);
  for (int64_t i = 0; i < n; ++i) {
    if (i % 11 == 3) t.set(i, t.get(i) * 0x1p-125);
    if (i % 29 == 5) t.set(i, i % 2 ? 0.0 : -0.0);
  }
  return t;
}

struct Layer {
  explicit Layer(const Size& s, int64_t offset = 0)
      : size(s),
        x(operand(s.n * s.in, 1, offset)),
        w(operand(s.out * s.in, 2, offset)),
        dy(operand(s.n * s.out, 3, offset)),
        bias(operand(s.out, 4, offset)) {}

  Product forward(TestTensor& y, bool biased) const {
    return {DType::kBF16, x.data(), w.data(), size.in, true, size.n, size.out, size.in,
            y.dtype(), y.data(), biased ? bias.data() : nullptr};
  }
  Product backward(TestTensor& dx) const {
    return {DType::kBF16, dy.data(), w.data(), size.in, false, size.n, size.in, size.out,
            dx.dtype(), dx.data()};
  }
  WeightGradient gradient(TestTensor& dw, bool add) const {
    return {DType::kBF16, dy.data(), x.data(), size.n, size.in, size.out, dw.floats(), add};
  }

  Size size;
  TestTensor x, w, dy, bias;
};

float value(const TestTensor& t, int64_t i) { return static_cast<float>(t.get(i)); }

// Names the first element that differs.
void expect_bits(const std::string& what, const TestTensor& got, const TestTensor& want) {
  if (got.bits() == want.bits()) return;
  for (int64_t i = 0; i < got.size(); ++i) {
    const bool same = got.get(i) == want.get(i) && std::signbit(got.get(i)) ==
                                                       std::signbit(want.get(i));
    if (same) continue;
    ADD_FAILURE() << what << ": element " << i << " of " << got.size() << " is " << got.get(i)
                  << ", not " << want.get(i);
    return;
  }
}

// Sums in fp32.   forward (n, out), input gradient (n, in)
TestTensor defined_forward(const Layer& l, BlockSum order) {
  const Size& s = l.size;
  TestTensor sums(DType::kF32, s.n * s.out);
  for (int64_t i = 0; i < sums.size(); ++i) {
    const int64_t r = i / s.out, o = i % s.out;
    sums.set(i, defined_sum(order, s.in, [&](int64_t p) { return value(l.x, r * s.in + p); },
                            [&](int64_t p) { return value(l.w, o * s.in + p); }));
  }
  return sums;
}
TestTensor defined_backward(const Layer& l, BlockSum order) {
  const Size& s = l.size;
  TestTensor sums(DType::kF32, s.n * s.in);
  for (int64_t i = 0; i < sums.size(); ++i) {
    const int64_t r = i / s.in, c = i % s.in;
    sums.set(i, defined_sum(order, s.out, [&](int64_t p) { return value(l.dy, r * s.out + p); },
                            [&](int64_t p) { return value(l.w, p * s.in + c); }));
  }
  return sums;
}

// Those of `dt` that sums and a bias, if any, are stored as.
TestTensor stored(const TestTensor& sums, DType dt, const TestTensor* bias) {
  TestTensor out(dt, sums.size());
  for (int64_t i = 0; i < sums.size(); ++i) {
    const float sum = value(sums, i);
    out.set(i, bias == nullptr ? sum : sum + value(*bias, i % bias->size()));
  }
  return out;
}

TestTensor defined_gradient(const Layer& l, BlockSum order) {
  const Size& s = l.size;
  TestTensor sums(DType::kF32, s.out * s.in);
  for (int64_t i = 0; i < sums.size(); ++i) {
    const int64_t o = i / s.in, c = i % s.in;
    sums.set(i, defined_sum(order, s.n, [&](int64_t p) { return value(l.dy, p * s.out + o); },
                            [&](int64_t p) { return value(l.x, p * s.in + c); }));
  }
  return sums;
}

std::string text(const BlockKernel& kernel, const Size& s) {
  return strf("%s, n %lld in %lld out %lld", kernel.name, static_cast<long long>(s.n),
              static_cast<long long>(s.in), static_cast<long long>(s.out));
}

class ProductsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (block_kernels().empty()) GTEST_SKIP() << "this processor has none of the kernels";
    for (const BlockKernel* kernel : tested_kernels()) std::printf("kernel: %s\n", kernel->name);
  }
  static std::vector<const BlockKernel*> tested_kernels() {
    std::vector<const BlockKernel*> kernels = block_kernels();
    if (lowered_block_kernel() != nullptr) kernels.push_back(lowered_block_kernel());
    return kernels;
  }
  template <typename Body>
  static void for_sizes_and_kernels(Body&& body) {
    for (const Size& size : fewer_when_sanitized(kSizes, 6)) {
      for (const BlockKernel* kernel : tested_kernels()) body(size, *kernel);
    }
  }
  ThreadPool pool_{2};
};

TEST_F(ProductsTest, ForwardIsWhatIsDefined) {
  for_sizes_and_kernels([&](const Size& size, const BlockKernel& kernel) {
    const TestTensor sums = defined_forward(Layer(size), kernel.sum);
    for (const int64_t offset : {0, 3}) {
      const Layer l(size, offset);
      for (const DType dt : kDTypes) {
        for (const bool biased : {false, true}) {
          TestTensor y(dt, size.n * size.out, offset);
          multiply_blocks(kernel, l.forward(y, biased), pool_);
          expect_bits("forward: " + text(kernel, size), y,
                      stored(sums, dt, biased ? &l.bias : nullptr));
        }
      }
    }
  });
}

TEST_F(ProductsTest, InputGradientIsWhatIsDefined) {
  for_sizes_and_kernels([&](const Size& size, const BlockKernel& kernel) {
    const TestTensor sums = defined_backward(Layer(size), kernel.sum);
    for (const int64_t offset : {0, 3}) {
      const Layer l(size, offset);
      for (const DType dt : kDTypes) {
        TestTensor dx(dt, size.n * size.in, offset);
        multiply_blocks(kernel, l.backward(dx), pool_);
        expect_bits("input gradient: " + text(kernel, size), dx, stored(sums, dt, nullptr));
      }
    }
  });
}

// Added to what is there; or without a look at it: NaN would stay.
TEST_F(ProductsTest, WeightGradientIsWhatIsDefined) {
  for_sizes_and_kernels([&](const Size& size, const BlockKernel& kernel) {
    if (size.n > 256) return;  // more than a row block is more than a call
    const TestTensor sums = defined_gradient(Layer(size), kernel.sum);
    for (const int64_t offset : {0, 1, 4}) {
      const Layer l(size, offset);
      for (const bool add : {false, true}) {
        TestTensor want(DType::kF32, sums.size());
        add ? want.randomise(7) : want.fill(0);
        for (int64_t i = 0; i < sums.size(); ++i) want.set(i, value(want, i) + value(sums, i));
        TestTensor dw(DType::kF32, sums.size(), offset);
        add ? dw.randomise(7) : dw.fill(NAN);
        add_gradient_blocks(kernel, l.gradient(dw, add), pool_);
        expect_bits("weight gradient: " + text(kernel, size), dw, want);
      }
    }
  });
}

// A chain of FMAs rounds once a term: the error grows like sqrt(depth) eps times the sum of
// magnitudes. Terms that are flushed are below 2^-126 each.
TEST_F(ProductsTest, SumsAreCloseToDouble) {
  const Layer l({40, 2080, 50});
  for (const BlockKernel* kernel : block_kernels()) {
    TestTensor y(DType::kF32, 40 * 50);
    multiply_blocks(*kernel, l.forward(y, false), pool_);
    Doubles want(40 * 50), magnitude(40 * 50);
    for (int64_t i = 0; i < y.size(); ++i) {
      for (int64_t p = 0; p < 2080; ++p) {
        const double term = l.x.get(i / 50 * 2080 + p) * l.w.get(i % 50 * 2080 + p);
        want[i] += term;
        magnitude[i] += std::abs(term);
      }
    }
    expect_close(kernel->name, y.doubles(), want, [&](size_t i) {
      return 2 * kEps32 * std::sqrt(2080.0) * magnitude[i] + 2080 * 0x1p-126;
    });
  }
}

// A kernel of the wide form takes operands in either.
TEST_F(ProductsTest, BothFormsGiveTheSameBits) {
  const Layer l({64, 256, 64});
  alignas(64) static std::byte left[2][8 * 2 * kStepBytes], right[2][8 * 2 * kStepBytes];
  const auto* rows = static_cast<const bf16*>(l.x.data());
  const auto* columns = static_cast<const bf16*>(l.w.data());
  for (const BlockKernel* kernel : tested_kernels()) {
    if (kernel->form != StepForm::kWide) continue;
    for (const StepForm form : {StepForm::kPairs, StepForm::kWide}) {
      const auto f = static_cast<size_t>(form);
      pack_left_rows(form, {rows, 256, 27, 256}, left[f]);
      for (int64_t s = 0; s < 8; ++s) {
        pack_right_rows(form, {columns + s * kBlock, 256, 21, kBlock},
                        right[f] + s * step_bytes(form));
      }
    }
    std::string want;
    for (const size_t l_form : {0u, 1u}) {
      for (const size_t r_form : {0u, 1u}) {
        alignas(64) float sums[kBlockFloats];
        BlockProduct product{left[l_form], 0, 0, 0, right[r_form], 8, sums};
        product.left_form = static_cast<StepForm>(l_form);
        product.right_form = static_cast<StepForm>(r_form);
        product.step_stride = step_bytes(product.left_form);
        product.row_stride = product.step_stride / kBlock;
        product.tile_stride = product.row_stride * kTileSide;
        product.rows = 27;
        product.cols = 21;
        BlockSession(*kernel).multiply(product);
        std::string got;
        for (int64_t r = 0; r < 27; ++r) {
          for (int64_t c = 0; c < 21; ++c) {
            const int64_t tile = r / kTileSide * 512 + c / kTileSide * 256;
            got += strf("%a ", sums[tile + r % kTileSide * kTileSide + c % kTileSide]);
          }
        }
        if (want.empty()) want = got;
        EXPECT_EQ(got, want) << kernel->name << " " << l_form << r_form;
      }
    }
  }
}

// A run goes on with another kernel of the same order as if it were this one.
TEST_F(ProductsTest, TheBuildNamesWhatDecidesOfBitsAlone) {
  const bool one = block_kernels().front()->sum == BlockSum::kOneChain;
  EXPECT_EQ(products_build().find("one chain") != std::string::npos, one) << products_build();
  for (const BlockKernel* kernel : block_kernels()) {
    EXPECT_EQ(products_build().find(kernel->name), std::string::npos) << products_build();
  }
  EXPECT_EQ(products_kernel(), block_kernels().front()->name);
}

TEST_F(ProductsTest, ThreadsDoNotMatter) {
  const Layer l({200, 416, 352});
  for (const BlockKernel* kernel : block_kernels()) {
    expect_same_bits([&](Stream& s) {
      TestTensor y(DType::kBF16, 200 * 352), dx(DType::kF32, 200 * 416);
      TestTensor dw(DType::kF32, 352 * 416);
      multiply_blocks(*kernel, l.forward(y, true), s.pool());
      multiply_blocks(*kernel, l.backward(dx), s.pool());
      add_gradient_blocks(*kernel, l.gradient(dw, false), s.pool());
      return y.bits() + dx.bits() + dw.bits();
    });
  }
}

// A bf16 NaN or infinity in a row stays in what that row gives.
TEST_F(ProductsTest, WhatIsNotFiniteStaysInItsRow) {
  const Size size{40, 70, 50};
  Layer l(size);
  for (int64_t p = 0; p < size.in; ++p) l.x.set(7 * size.in + p, p % 2 ? NAN : INFINITY);
  for (const BlockKernel* kernel : block_kernels()) {
    TestTensor y(DType::kBF16, size.n * size.out);
    multiply_blocks(*kernel, l.forward(y, false), pool_);
    for (int64_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(std::isfinite(y.get(i)), i / size.out != 7) << kernel->name << " element " << i;
    }
  }
}

// What the bench holds us against computes the same, however its operands are given.
TEST(LibraryMatmulTest, MultipliesWhatItIsGiven) {
  constexpr int64_t kM = 37, kN = 70, kK = 90;
  TestTensor a(DType::kBF16, kM * kK), b(DType::kBF16, kK * kN), c(DType::kF32, kM * kN);
  a.randomise(11);
  b.randomise(12);
  for (const bool a_transposed : {false, true}) {
    for (const bool packed : {false, true}) {
      const auto matmul =
          make_library_matmul({kM, kN, kK, DType::kF32, a_transposed, packed});
      if (matmul == nullptr) GTEST_SKIP() << "no library, or none for this processor";
      std::vector<std::byte> memory(static_cast<size_t>(matmul->packed_bytes()) + 64);
      void* right = b.data();
      if (packed) {
        right = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
        matmul->pack(static_cast<const bf16*>(b.data()), kN, false, right);
      }
      matmul->multiply(static_cast<const bf16*>(a.data()), right, c.data());
      Doubles want(kM * kN), magnitude(kM * kN);
      for (int64_t i = 0; i < kM * kN; ++i) {
        for (int64_t p = 0; p < kK; ++p) {
          const int64_t left = a_transposed ? p * kM + i / kN : i / kN * kK + p;
          const double term = a.get(left) * b.get(p * kN + i % kN);
          want[i] += term;
          magnitude[i] += std::abs(term);
        }
      }
      expect_close(strf("transposed %d packed %d", a_transposed, packed), c.doubles(), want,
                   [&](size_t i) { return 2 * kEps32 * std::sqrt(90.0) * magnitude[i]; });
    }
  }
}

TEST_F(ProductsTest, SaturationCountsItsOperations) {
  for (const BlockKernel* kernel : block_kernels()) {
    const BlockSession session(*kernel);
    EXPECT_GT(session.saturate(1), 0) << kernel->name;
    EXPECT_EQ(session.saturate(20), 20 * session.saturate(1)) << kernel->name;
  }
}

}  // namespace
}  // namespace pagoda
