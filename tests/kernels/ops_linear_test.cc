// The three multiplications against double loops, and what callers build on: a row's bits depend on
// nothing but the row, a call's on nothing but shapes and values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/products/gemm.h"
#include "tests/testing/op_testing.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

struct Size {
  int64_t n, in, out;
};
const Size kSizes[] = {{1, 1, 1},     {1, 64, 32},    {3, 5, 7},      {17, 33, 129}, {64, 128, 128},
                       {65, 96, 200}, {255, 160, 48}, {257, 40, 300}, {600, 32, 16}};

// A sum of K products in fp32: the error grows like sqrt(K) eps times the sum of magnitudes (each
// of K additions rounds a partial sum smaller than that); then one rounding of the result.
double sum_tolerance(double magnitude, int64_t terms, double want, DType out) {
  return 2 * kEps32 * std::sqrt(static_cast<double>(terms) + 4) * magnitude +
         1.01 * rounding_of(out) * std::abs(want) + 1e-37;
}

// C (m, n) = A (m, k) B, and the same of magnitudes.
struct Reference {
  Doubles value, magnitude;
};
Reference product(int64_t m, int64_t n, int64_t k, const std::function<double(int64_t, int64_t)>& a,
                  const std::function<double(int64_t, int64_t)>& b) {
  Reference r{Doubles(m * n), Doubles(m * n)};
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const double left = a(i, p);
      for (int64_t j = 0; j < n; ++j) {
        const double term = left * b(p, j);
        r.value[i * n + j] += term;
        r.magnitude[i * n + j] += std::abs(term);
      }
    }
  }
  return r;
}

void expect_product(const std::string& what, const TestTensor& got, const Reference& want,
                    int64_t terms) {
  expect_close(what, got.doubles(), want.value, [&](size_t i) {
    return sum_tolerance(want.magnitude[i], terms, want.value[i], got.dtype());
  });
}

std::string name(DType dt, DType out, const Size& s) {
  return strf("%s to %s, n %lld in %lld out %lld", dtype_name(dt), dtype_name(out),
              static_cast<long long>(s.n), static_cast<long long>(s.in),
              static_cast<long long>(s.out));
}

void check_forward(DType dt, DType y_dt, const Size& s) {
  TestTensor x(dt, s.n * s.in), w(dt, s.out * s.in), y(y_dt, s.n * s.out);
  x.randomise(1);
  w.randomise(2);
  cpu_ops().linear(dt, x.data(), w.data(), s.n, s.in, s.out, y_dt, y.data(), test_stream());
  test_stream().synchronize();
  const auto want = product(s.n, s.out, s.in, [&](auto i, auto p) { return x.get(i * s.in + p); },
                            [&](auto p, auto j) { return w.get(j * s.in + p); });
  expect_product("linear " + name(dt, y_dt, s), y, want, s.in);
}

void check_backward_input(DType dt, DType dx_dt, const Size& s) {
  TestTensor dy(dt, s.n * s.out), w(dt, s.out * s.in), dx(dx_dt, s.n * s.in);
  dy.randomise(3);
  w.randomise(4);
  cpu_ops().linear_backward_input(dt, dy.data(), w.data(), s.n, s.in, s.out, dx_dt, dx.data(),
                                  test_stream());
  test_stream().synchronize();
  const auto want = product(s.n, s.in, s.out, [&](auto i, auto p) { return dy.get(i * s.out + p); },
                            [&](auto p, auto j) { return w.get(p * s.in + j); });
  expect_product("linear_backward_input " + name(dt, dx_dt, s), dx, want, s.out);
}

void check_backward_weight(DType dt, const Size& s) {
  TestTensor dy(dt, s.n * s.out), x(dt, s.n * s.in), dw(DType::kF32, s.out * s.in);
  dy.randomise(5);
  x.randomise(6);
  dw.randomise(7);  // the gradient is added to what is there
  const Doubles before = dw.doubles();
  cpu_ops().linear_backward_weight(dt, dy.data(), x.data(), s.n, s.in, s.out, true, dw.floats(),
                                   test_stream());
  test_stream().synchronize();
  auto want = product(s.out, s.in, s.n, [&](auto i, auto p) { return dy.get(p * s.out + i); },
                      [&](auto p, auto j) { return x.get(p * s.in + j); });
  for (size_t i = 0; i < before.size(); ++i) {
    want.value[i] += before[i];
    want.magnitude[i] += std::abs(before[i]);
  }
  expect_product("linear_backward_weight " + name(dt, DType::kF32, s), dw, want, s.n);
}

TEST(Linear, MatchesDoubleLoops) {
  for (DType dt : kDTypes) {
    for (const Size& size : fewer_when_sanitized(kSizes, 3)) {
      for (DType out : kDTypes) {
        check_forward(dt, out, size);
        check_backward_input(dt, out, size);
      }
      check_backward_weight(dt, size);
    }
  }
}

// Deeper than one packed panel, as the head's input gradient is.
TEST(Linear, MatchesDoubleLoopsWhenDeep) {
  for (DType dt : kDTypes) {
    check_forward(dt, dt, {70, 2 * kGemmDepth + 3, 30});
    check_backward_input(dt, dt, {70, 30, 2 * kGemmDepth + 3});
    check_backward_weight(dt, {3, 30, 2 * kGemmDepth + 3});
  }
}

void check_biased(DType dt, DType y_dt, const Size& s) {
  TestTensor x(dt, s.n * s.in), w(dt, s.out * s.in), bias(dt, s.out), y(y_dt, s.n * s.out);
  x.randomise(1);
  w.randomise(2);
  bias.randomise(8);
  cpu_ops().linear_biased(dt, x.data(), w.data(), bias.data(), s.n, s.in, s.out, y_dt, y.data(),
                          test_stream());
  test_stream().synchronize();
  auto want = product(s.n, s.out, s.in, [&](auto i, auto p) { return x.get(i * s.in + p); },
                      [&](auto p, auto j) { return w.get(j * s.in + p); });
  for (int64_t i = 0; i < s.n * s.out; ++i) {
    want.value[i] += bias.get(i % s.out);
    want.magnitude[i] += std::abs(bias.get(i % s.out));
  }
  expect_product("linear_biased " + name(dt, y_dt, s), y, want, s.in + 1);
}

// Three experts, the second without rows; the first one's gradient is added to what is there.
TEST(Linear, BiasesOfExpertsAreThoseOfEach) {
  constexpr int64_t kIn = 40, kOut = 33, kRows[] = {300, 0, 7}, kAll = 307;
  for (DType dt : kDTypes) {
    TestTensor x(dt, kAll * kIn), w(dt, 3 * kOut * kIn), bias(dt, 3 * kOut), y(dt, kAll * kOut);
    TestTensor scale(DType::kF32, kAll), dbias(DType::kF32, 3 * kOut), plain(DType::kF32, 3 * kOut);
    uint64_t seed = 20;
    for (TestTensor* t : {&x, &w, &bias, &scale, &dbias}) t->randomise(++seed);
    const Doubles before = dbias.doubles();
    std::vector<RowsOfWeight> weights;
    std::vector<RowsOfGradient> scaled, whole;
    const auto at = [&](TestTensor& t, int64_t i) {
      return static_cast<std::byte*>(t.data()) + i * dtype_bytes(t.dtype());
    };
    int64_t first = 0;
    for (int64_t e = 0; e < 3; first += kRows[e++]) {
      weights.push_back({first, kRows[e], at(w, e * kOut * kIn), at(bias, e * kOut)});
      scaled.push_back({first, kRows[e], dbias.floats() + e * kOut, e == 0});
      whole.push_back({first, kRows[e], plain.floats() + e * kOut, false});
    }
    cpu_ops().grouped_linear(dt, x.data(), weights, kIn, kOut, dt, y.data(), test_stream());
    cpu_ops().grouped_bias_backward(dt, y.data(), scale.floats(), scaled, kOut, test_stream());
    cpu_ops().grouped_bias_backward(dt, y.data(), nullptr, whole, kOut, test_stream());
    test_stream().synchronize();
    TestTensor alone(dt, kAll * kOut);
    first = 0;
    for (int64_t e = 0; e < 3; first += kRows[e++]) {
      cpu_ops().linear_biased(dt, at(x, first * kIn), weights[e].w, weights[e].bias, kRows[e], kIn,
                              kOut, dt, at(alone, first * kOut), test_stream());
      for (int64_t j = 0; j < kOut; ++j) {
        double want = e == 0 ? before[j] : 0.0, want_plain = 0.0, size = std::abs(want);
        for (int64_t t = first; t < first + kRows[e]; ++t) {
          want += scale.get(t) * y.get(t * kOut + j);
          want_plain += y.get(t * kOut + j);
          size += (1 + std::abs(scale.get(t))) * std::abs(y.get(t * kOut + j));
        }
        const double bound = static_cast<double>(kRows[e] + 2) * kEps32 * size + 1e-30;
        EXPECT_NEAR(dbias.get(e * kOut + j), want, bound) << e << " " << j;
        EXPECT_NEAR(plain.get(e * kOut + j), want_plain, bound) << e << " " << j;
      }
    }
    test_stream().synchronize();
    EXPECT_TRUE(alone.bits() == y.bits()) << dtype_name(dt);
  }
}

// Rows of two matrices that lie anywhere give the bits of the same rows behind one another, as
// every operand that may be read in place.
void check_rows_in_place(DType dt, int64_t in, int64_t out, const std::vector<int64_t>& counts) {
  SCOPED_TRACE(testing::Message() << dtype_name(dt) << " " << in << " to " << out);
  const int64_t n = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t experts = std::ssize(counts), tokens = n + 5;
  TestTensor w(dt, experts * out * in), bias(dt, experts * out), scale(DType::kF32, n);
  std::vector<TestTensor> x, dy;  // two microbatches
  for (int64_t b = 0; b < 2; ++b) {
    x.emplace_back(dt, tokens * in).randomise(41 + b);
    dy.emplace_back(dt, tokens * out).randomise(43 + b);
  }
  w.randomise(45);
  bias.randomise(46);
  scale.randomise(47);
  std::vector<int32_t> index;  // of each microbatch the rows of all experts, backwards
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < n; ++i) index.push_back(static_cast<int32_t>(tokens - 1 - (i * 3) % n));
  }
  std::vector<RowRun> runs[2];
  std::vector<RowsOfWeight> weights;
  std::vector<RowsOfGradient> gradients[2], biases[2];
  TestTensor dw[2] = {{DType::kF32, experts * out * in}, {DType::kF32, experts * out * in}};
  TestTensor dbias[2] = {{DType::kF32, experts * out}, {DType::kF32, experts * out}};
  const auto at = [](TestTensor& t, int64_t i) {
    return static_cast<std::byte*>(t.data()) + i * dtype_bytes(t.dtype());
  };
  int64_t first = 0;
  for (int64_t e = 0; e < experts; first += counts[static_cast<size_t>(e++)]) {
    const int64_t count = counts[static_cast<size_t>(e)], half = count / 2;
    runs[0].push_back({first, first, half});
    runs[1].push_back({n + first, first + half, count - half});
    weights.push_back(
        {first, count, at(w, e * out * in), e % 2 == 0 ? at(bias, e * out) : nullptr});
    for (int i = 0; i < 2; ++i) {
      gradients[i].push_back({first, count, dw[i].floats() + e * out * in, e % 2 == 1});
      biases[i].push_back({first, count, dbias[i].floats() + e * out, e % 2 == 1});
    }
  }
  TestTensor packed_x(dt, n * in), packed_dy(dt, n * out);
  std::vector<const void*> x_rows(static_cast<size_t>(n)), dy_rows(x_rows);
  Stream& s = test_stream();
  for (int64_t b = 0; b < 2; ++b) {
    cpu_ops().gather_row_runs(dt, x[b].data(), index.data(), runs[b], in, packed_x.data(), s);
    cpu_ops().gather_row_runs(dt, dy[b].data(), index.data(), runs[b], out, packed_dy.data(), s);
    cpu_ops().locate_rows(dt, x[b].data(), index.data(), runs[b], in, x_rows.data(), s);
    cpu_ops().locate_rows(dt, dy[b].data(), index.data(), runs[b], out, dy_rows.data(), s);
  }
  const InputRows inputs[2][2] = {{packed_x.data(), packed_dy.data()},
                                  {InputRows::at(x_rows.data()), InputRows::at(dy_rows.data())}};
  std::string bits[2];
  for (int i = 0; i < 2; ++i) {
    const auto& [rows, gradient] = inputs[i];
    TestTensor y(dt, n * out), dx(DType::kF32, n * in);
    dw[i].fill(0.25);
    dbias[i].fill(0.5);
    cpu_ops().grouped_linear(dt, rows, weights, in, out, dt, y.data(), s);
    cpu_ops().grouped_linear_backward_input(dt, gradient, weights, in, out, DType::kF32, dx.data(),
                                            s);
    cpu_ops().grouped_linear_backward_weight(dt, gradient, rows, gradients[i], in, out, s);
    cpu_ops().grouped_bias_backward(dt, gradient, scale.floats(), biases[i], out, s);
    s.synchronize();
    bits[i] = y.bits() + dx.bits() + dw[i].bits() + dbias[i].bits();
  }
  EXPECT_TRUE(bits[0] == bits[1]);
}

// Rows that experts add to the sums of tokens, in which several of them meet, give the bits of
// dense rows that scatter_add_rows adds, expert after expert.
void check_added_rows(DType dt, int64_t in, int64_t out, const std::vector<int64_t>& counts) {
  SCOPED_TRACE(testing::Message() << dtype_name(dt) << " " << in << " to " << out);
  const int64_t n = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t experts = std::ssize(counts);
  const int64_t tokens = 3 * *std::max_element(counts.begin(), counts.end()) + 1;
  TestTensor x(dt, n * in), dy(dt, n * out), w(dt, experts * out * in), bias(dt, experts * out),
      scale(DType::kF32, n);
  x.randomise(51);
  dy.randomise(52);
  w.randomise(53);
  bias.randomise(54);
  scale.randomise(55);
  for (int64_t i = 0; i < n; i += 5) scale.set(i, 0x1p-136);  // what is added is subnormal
  const auto at = [](TestTensor& t, int64_t i) {
    return static_cast<std::byte*>(t.data()) + i * dtype_bytes(t.dtype());
  };
  std::vector<int32_t> index;  // an expert's rows are of different tokens
  std::vector<RowsOfWeight> weights;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t count = counts[static_cast<size_t>(e)];
    weights.push_back(
        {std::ssize(index), count, at(w, e * out * in), e % 2 == 0 ? at(bias, e * out) : nullptr});
    for (int64_t i = 0; i < count; ++i) {
      index.push_back(static_cast<int32_t>((3 * i + e) % tokens));
    }
  }
  Stream& s = test_stream();
  const auto check = [&](const char* what, int64_t dim, const float* factors, auto&& multiply) {
    TestTensor dense(dt, n * dim), added(DType::kF32, tokens * dim),
        scattered(DType::kF32, tokens * dim);
    for (TestTensor* sums : {&added, &scattered}) {
      sums->randomise(56);
      for (int64_t i = 0; i < sums->size(); i += 7) sums->set(i, 0);
    }
    std::vector<const void*> sums(static_cast<size_t>(n));
    const RowRun all{0, 0, n};
    cpu_ops().locate_rows(DType::kF32, added.data(), index.data(), {&all, 1}, dim, sums.data(), s);
    multiply(OutputRows::added(sums.data(), factors));
    multiply(OutputRows(dense.data()));
    for (const RowsOfWeight& e : weights) {
      cpu_ops().scatter_add_rows(dt, at(dense, e.first * dim), index.data() + e.first,
                                 factors != nullptr ? factors + e.first : nullptr, e.count, dim,
                                 scattered.floats(), s);
    }
    s.synchronize();
    EXPECT_TRUE(added.bits() == scattered.bits()) << what;
  };
  check("y", out, scale.floats(), [&](const OutputRows& y) {
    cpu_ops().grouped_linear(dt, x.data(), weights, in, out, dt, y, s);
  });
  check("dx", in, nullptr, [&](const OutputRows& dx) {
    cpu_ops().grouped_linear_backward_input(dt, dy.data(), weights, in, out, dt, dx, s);
  });
}

TEST(Linear, AddedRowsHaveTheBitsOfRowsThatAreScattered) {
  for (DType dt : kDTypes) {
    check_added_rows(dt, 64, 96, {32, 64, 256});
    check_added_rows(dt, 40, 33, {300, 0, 7, 1});
    check_added_rows(dt, 96, 130, {65, 31, 2});
    check_added_rows(dt, 2100, 70, {33, 600});  // deeper than a panel of gemm.h
    check_added_rows(dt, 130, 48, {600, 3});    // fewer columns than blocks are for
  }
}

TEST(Linear, RowsInPlaceHaveTheBitsOfCopies) {
  for (DType dt : kDTypes) {
    check_rows_in_place(dt, 64, 96, {32, 64, 256});
    check_rows_in_place(dt, 40, 33, {300, 0, 7, 1});
    check_rows_in_place(dt, 96, 130, {65, 31, 2});
    check_rows_in_place(dt, 2100, 70, {33, 600});  // deeper than a panel of gemm.h
    check_rows_in_place(dt, 130, 48, {600, 3});    // fewer columns than blocks are for
  }
}

// Without an index rows are the matrix's own.
TEST(Linear, LocatedRowsAreWhereTheyAre) {
  constexpr int64_t kDim = 6;
  TestTensor x(DType::kBF16, 10 * kDim);
  const int32_t index[] = {9, 3, 0, 7};
  const RowRun some[] = {{1, 2, 2}, {3, 0, 1}}, own[] = {{4, 1, 1}};
  const void* rows[4] = {};
  cpu_ops().locate_rows(DType::kBF16, x.data(), index, some, kDim, rows, test_stream());
  cpu_ops().locate_rows(DType::kBF16, x.data(), nullptr, own, kDim, rows, test_stream());
  test_stream().synchronize();
  const auto* base = static_cast<const bf16*>(x.data());
  const void* const expected[] = {base + 7 * kDim, base + 4 * kDim, base + 3 * kDim, base};
  EXPECT_TRUE(std::equal(rows, rows + 4, expected));
}

void check_bias_backward(DType dt, int64_t n, int64_t dim) {
  TestTensor dy(dt, n * dim), dbias(DType::kF32, dim);
  dy.randomise(9);
  dbias.randomise(10);  // the gradient is added to what is there
  Doubles want = dbias.doubles(), magnitude(want);
  for (double& v : magnitude) v = std::abs(v);
  for (int64_t i = 0; i < n * dim; ++i) {
    want[i % dim] += dy.get(i);
    magnitude[i % dim] += std::abs(dy.get(i));
  }
  cpu_ops().bias_backward(dt, dy.data(), n, dim, dbias.floats(), test_stream());
  test_stream().synchronize();
  expect_close(strf("bias_backward %s, n %lld", dtype_name(dt), (long long)n), dbias.doubles(),
               want,
               [&](size_t i) { return sum_tolerance(magnitude[i], n, want[i], DType::kF32); });
}

TEST(Linear, BiasMatchesDoubleLoops) {
  for (DType dt : kDTypes) {
    for (const Size& size : fewer_when_sanitized(kSizes, 3)) {
      for (DType y_dt : kDTypes) check_biased(dt, y_dt, size);
      check_bias_backward(dt, size.n, size.out);
    }
    check_biased(dt, dt, {70, 2 * kGemmDepth + 3, 30});
    check_bias_backward(dt, 700, 33);
  }
}

TEST(Linear, BiasIsTheSameForEveryThreadCount) {
  for (DType dt : kDTypes) {
    expect_same_bits([&](Stream& s) {
      TestTensor x(dt, 600 * 40), w(dt, 300 * 40), bias(dt, 300), y(dt, 600 * 300);
      TestTensor dbias(DType::kF32, 300);
      x.randomise(1);
      w.randomise(2);
      bias.randomise(3);
      dbias.fill(0);
      cpu_ops().linear_biased(dt, x.data(), w.data(), bias.data(), 600, 40, 300, dt, y.data(), s);
      cpu_ops().bias_backward(dt, y.data(), 600, 300, dbias.floats(), s);
      s.synchronize();
      return y.bits() + dbias.bits();
    });
  }
}

TEST(Linear, NoRowsIsNothing) {
  TestTensor w(DType::kF32, 12), dw(DType::kF32, 12);
  dw.randomise(8);
  const std::string before = dw.bits();
  Stream& s = test_stream();
  cpu_ops().linear(DType::kF32, nullptr, w.data(), 0, 3, 4, DType::kF32, nullptr, s);
  cpu_ops().linear_backward_input(DType::kF32, nullptr, w.data(), 0, 3, 4, DType::kF32, nullptr, s);
  cpu_ops().linear_backward_weight(DType::kF32, nullptr, nullptr, 0, 3, 4, true, dw.floats(), s);
  s.synchronize();
  EXPECT_EQ(dw.bits() == before, true);
}

// Forward and input gradient of rows [first, first + n) of 300, from tensors misaligned by
// `offset`.
std::string rows_alone(DType dt, int64_t in, int64_t out, int64_t first, int64_t n,
                       int64_t offset) {
  constexpr int64_t kRows = 300;
  TestTensor all_x(dt, kRows * in), all_dy(dt, kRows * out);
  all_x.randomise(11);
  all_dy.randomise(12);
  TestTensor x(dt, n * in, offset), dy(dt, n * out, offset), w(dt, out * in, offset);
  w.randomise(13);
  for (int64_t i = 0; i < n * in; ++i) x.set(i, all_x.get(first * in + i));
  for (int64_t i = 0; i < n * out; ++i) dy.set(i, all_dy.get(first * out + i));
  TestTensor y(dt, n * out, offset), y32(DType::kF32, n * out, offset), dx(dt, n * in, offset);
  Stream& s = test_stream();
  cpu_ops().linear(dt, x.data(), w.data(), n, in, out, dt, y.data(), s);
  cpu_ops().linear(dt, x.data(), w.data(), n, in, out, DType::kF32, y32.data(), s);
  cpu_ops().linear_backward_input(dt, dy.data(), w.data(), n, in, out, dt, dx.data(), s);
  s.synchronize();
  std::string rows;  // row by row, so that a prefix is a call of fewer rows
  for (int64_t r = 0; r < n; ++r) {
    rows += y.bits().substr(r * out * dtype_bytes(dt), out * dtype_bytes(dt));
    rows += y32.bits().substr(r * out * 4, out * 4);
    rows += dx.bits().substr(r * in * dtype_bytes(dt), in * dtype_bytes(dt));
  }
  return rows;
}

constexpr int64_t kHeights[] = {1, 7, 16, 31, 64, 100, 255, 256};

TEST(Linear, RowDoesNotDependOnOtherRows) {
  for (DType dt : kDTypes) {
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{96, 160}, {77, 45}, {2080, 64},
                                  {576, 1}, {576, 4}, {96, 16}, {96, 17}, {16, 96}}) {
      const std::string all = rows_alone(dt, in, out, 0, 300, 0);
      const int64_t row_bytes = static_cast<int64_t>(all.size()) / 300;
      for (int64_t n : kHeights) {
        if (kUnderSanitizer && n != 31) continue;
        for (int64_t first : {int64_t{0}, int64_t{13}, 300 - n}) {
          if (first + n > 300) continue;
          const bool same = rows_alone(dt, in, out, first, n, 0) ==
                            all.substr(first * row_bytes, n * row_bytes);
          EXPECT_EQ(same, true) << dtype_name(dt) << " in " << in << " out " << out << ": rows "
                                << first << " to " << first + n << " differ from a call of 300";
        }
      }
    }
  }
}

TEST(Linear, AlignmentDoesNotMatter) {
  for (DType dt : kDTypes) {
    const std::string aligned = rows_alone(dt, 96, 160, 5, 70, 0);
    for (int64_t offset : {1, 3, 8}) {
      EXPECT_EQ(rows_alone(dt, 96, 160, 5, 70, offset) == aligned, true)
          << dtype_name(dt) << " offset " << offset;
    }
  }
}

TEST(Linear, ThreadsDoNotMatter) {
  constexpr int64_t kN = 700, kIn = 200, kOut = 330;
  for (DType dt : kDTypes) {
    TestTensor x(dt, kN * kIn), w(dt, kOut * kIn), dy(dt, kN * kOut);
    x.randomise(21);
    w.randomise(22);
    dy.randomise(23);
    expect_same_bits([&](Stream& s) {
      TestTensor y(dt, kN * kOut), dx(DType::kF32, kN * kIn), dw(DType::kF32, kOut * kIn);
      dw.fill(0.5);
      cpu_ops().linear(dt, x.data(), w.data(), kN, kIn, kOut, dt, y.data(), s);
      cpu_ops().linear_backward_input(dt, dy.data(), w.data(), kN, kIn, kOut, DType::kF32,
                                      dx.data(), s);
      cpu_ops().linear_backward_weight(dt, dy.data(), x.data(), kN, kIn, kOut, true, dw.floats(),
                                       s);
      s.synchronize();
      return y.bits() + dx.bits() + dw.bits();
    });
  }
}

// Handing a weight gradient its rows block by block gives the bits of one call.
TEST(Linear, WeightGradientOfBlocksIsThatOfOneCall) {
  constexpr int64_t kN = 600, kIn = 48, kOut = 70;
  for (DType dt : kDTypes) {
    TestTensor x(dt, kN * kIn), dy(dt, kN * kOut);
    x.randomise(31);
    dy.randomise(32);
    TestTensor whole(DType::kF32, kOut * kIn), parts(DType::kF32, kOut * kIn);
    whole.fill(0);
    parts.fill(0);
    Stream& s = test_stream();
    cpu_ops().linear_backward_weight(dt, dy.data(), x.data(), kN, kIn, kOut, true, whole.floats(),
                                     s);
    for (int64_t row = 0; row < kN; row += kRowBlock) {
      const auto* dy_rows = static_cast<std::byte*>(dy.data()) + row * kOut * dtype_bytes(dt);
      const auto* x_rows = static_cast<std::byte*>(x.data()) + row * kIn * dtype_bytes(dt);
      cpu_ops().linear_backward_weight(dt, dy_rows, x_rows, std::min(kRowBlock, kN - row), kIn,
                                       kOut, true, parts.floats(), s);
    }
    s.synchronize();
    EXPECT_EQ(whole.bits() == parts.bits(), true) << dtype_name(dt);
  }
}

// Without `add` a gradient has the bits of one added to zeros; no rows give zeros.
TEST(Linear, WeightGradientWithoutAddBeginsAtZero) {
  constexpr int64_t kIn = 48, kOut = 70;
  for (DType dt : kDTypes) {
    for (const int64_t n : {0, 5, 300}) {
      TestTensor x(dt, n * kIn), dy(dt, n * kOut);
      x.randomise(51);
      dy.randomise(52);
      TestTensor added(DType::kF32, kOut * kIn), written(DType::kF32, kOut * kIn);
      added.fill(0);
      written.fill(NAN);
      Stream& s = test_stream();
      cpu_ops().linear_backward_weight(dt, dy.data(), x.data(), n, kIn, kOut, true, added.floats(),
                                       s);
      cpu_ops().linear_backward_weight(dt, dy.data(), x.data(), n, kIn, kOut, false,
                                       written.floats(), s);
      s.synchronize();
      EXPECT_EQ(added.bits() == written.bits(), true) << dtype_name(dt) << " n " << n;
    }
  }
}

// Weight gradient from zero of `rows` rows and `zeros` rows of zeros, of either sign, behind them.
std::string weight_gradient_bits(DType dt, int64_t in, int64_t out, int64_t rows, int64_t zeros) {
  TestTensor x(dt, (rows + zeros) * in), dy(dt, (rows + zeros) * out);
  x.randomise(41);
  dy.randomise(42);
  for (int64_t i = rows * in; i < x.size(); ++i) x.set(i, i % 2 ? 0.0 : -0.0);
  for (int64_t i = rows * out; i < dy.size(); ++i) dy.set(i, i % 3 ? 0.0 : -0.0);
  TestTensor dw(DType::kF32, out * in);
  dw.fill(0);
  Stream& s = test_stream();
  cpu_ops().linear_backward_weight(dt, dy.data(), x.data(), rows + zeros, in, out, true,
                                   dw.floats(), s);
  s.synchronize();
  return dw.bits();
}

// Among them heights that kernels pad to different depths, and more than one block.
TEST(Linear, RowsOfZerosChangeNoBitOfAWeightGradient) {
  for (DType dt : kDTypes) {
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{48, 70}, {160, 16}}) {
      for (int64_t rows : kHeights) {
        const std::string alone = weight_gradient_bits(dt, in, out, rows, 0);
        for (int64_t all : {rows + 1, int64_t{64}, int64_t{128}, int64_t{256}, int64_t{300}}) {
          if (all <= rows) continue;
          EXPECT_EQ(weight_gradient_bits(dt, in, out, rows, all - rows) == alone, true)
              << dtype_name(dt) << " in " << in << " out " << out << ": " << rows << " rows and "
              << all - rows << " of zeros";
        }
      }
    }
  }
}

}  // namespace
}  // namespace pagoda
