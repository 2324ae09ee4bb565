// Norm, rotary embedding, rows, embedding and finished gradients against double references,
// gradients against finite differences of those.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows/row_math.h"
#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

Ops& ops() { return cpu_ops(); }

// ---- exponential ----

TEST(Exponential, MatchesDouble) {
  std::vector<float> x, y;
  for (int i = 0; i <= 400000; ++i) {
    x.push_back(static_cast<float>(-87.3 + (88.3 + 87.3) * i / 400000));
  }
  y.resize(x.size());
  exp_row(x.data(), static_cast<int64_t>(x.size()), 0.0f, y.data());
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(y[i] - want) / want);
  }
  EXPECT_LT(worst, 3e-7) << "the bound vector.h states";
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST(Exponential, EdgesAndTails) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {0.0f, -inf, -88.0f, 1000.0f, std::nanf("")};
  float y[5];
  exp_row(x, 5, 0.0f, y);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_TRUE(std::isfinite(y[3]) && y[3] > 1e38f);
  EXPECT_TRUE(std::isnan(y[4]));
}

// Every length around a vector's: parts of a vector must neither be missed nor counted twice.
TEST(RowMath, PartialVectors) {
  for (int64_t n = 1; n <= 50; ++n) {
    TestTensor a(DType::kF32, n, 1), b(DType::kF32, n, 3), e(DType::kF32, n);
    a.randomise(n);
    b.randomise(100 + n);
    const Doubles x = a.doubles(), y = b.doubles();
    Doubles magnitude(x);
    double size = 0.0, sum = 0.0, highest = x[0];
    for (int64_t i = 0; i < n; ++i) {
      size += std::abs(x[i] * y[i]);
      sum += std::exp(x[i] - 1.0);
      highest = std::max(highest, x[i]);
    }
    EXPECT_NEAR(dot(a.floats(), b.floats(), n), inner(x, y), 8 * kEps32 * size) << n;
    EXPECT_EQ(max_of(a.floats(), n), highest) << n;
    EXPECT_NEAR(exp_sum(a.floats(), n, 1.0f), sum, 1e-6 * sum) << n;
    EXPECT_EQ(exp_row(a.floats(), n, 1.0f, e.floats()), exp_sum(a.floats(), n, 1.0f)) << n;
  }
}

// ---- RMSNorm ----

struct NormCase {
  int64_t rows, groups, dim, stride;
};
const NormCase kNormCases[] = {{1, 1, 1, 1}, {5, 1, 17, 17}, {3, 4, 8, 50}, {260, 2, 24, 48}};

// The reference keeps the rounding of x * rstd: it is part of the op's definition.
Doubles norm_reference(const NormCase& c, const Doubles& x, const Doubles& w, double eps) {
  Doubles out(x);
  for (int64_t i = 0; i < c.rows * c.groups; ++i) {
    const int64_t at = i / c.groups * c.stride + i % c.groups * c.dim;
    double square = 0.0;
    for (int64_t j = 0; j < c.dim; ++j) square += x[at + j] * x[at + j];
    const double rstd = 1.0 / std::sqrt(square / static_cast<double>(c.dim) + eps);
    for (int64_t j = 0; j < c.dim; ++j) out[at + j] = x[at + j] * rstd * w[j];
  }
  return out;
}

int64_t norm_size(const NormCase& c) { return (c.rows - 1) * c.stride + c.groups * c.dim; }

// Marks the elements that belong to the op; the rest of each row must stay as it is.
std::vector<bool> norm_elements(const NormCase& c) {
  std::vector<bool> mine(static_cast<size_t>(norm_size(c)), false);
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t j = 0; j < c.groups * c.dim; ++j) mine[r * c.stride + j] = true;
  }
  return mine;
}

struct NormRun {
  TestTensor x, w, out, rstd, dout, dx, dw;
};

NormRun run_norm(DType dt, const NormCase& c, float eps, Stream& s) {
  const int64_t n = norm_size(c);
  NormRun r{TestTensor(dt, n), TestTensor(dt, c.dim), TestTensor(dt, n),
            TestTensor(DType::kF32, c.rows * c.groups), TestTensor(dt, n), TestTensor(dt, n),
            TestTensor(DType::kF32, c.dim)};
  r.x.randomise(1);
  r.w.randomise(2);
  r.dout.randomise(3);
  r.out.fill(7);
  r.dx.fill(7);
  r.dw.fill(0.25);  // added to
  ops().rmsnorm(dt, r.x.data(), r.w.data(), eps, c.rows, c.groups, c.dim, c.stride, r.out.data(),
                r.rstd.floats(), s);
  ops().rmsnorm_backward(dt, r.x.data(), r.w.data(), r.rstd.floats(), r.dout.data(), c.rows,
                         c.groups, c.dim, c.stride, r.dx.data(), r.dw.floats(), s);
  s.synchronize();
  return r;
}

void check_norm(DType dt, const NormCase& c) {
  const float eps = 1e-3f;
  const NormRun r = run_norm(dt, c, eps, test_stream());
  const auto mine = norm_elements(c);
  const Doubles x = r.x.doubles(), w = r.w.doubles();
  Doubles weight = r.dout.doubles();
  for (size_t i = 0; i < weight.size(); ++i) weight[i] *= mine[i];
  Doubles want = norm_reference(c, x, w, eps);
  for (size_t i = 0; i < want.size(); ++i) {
    if (!mine[i]) want[i] = 7;
  }
  const double u = rounding_of(dt), sum_error = 8 * kEps32 + kEps32 * std::sqrt(1.0 * c.dim);
  const double inner_rounding = dt == DType::kBF16 ? u : 0.0;
  expect_close(strf("rmsnorm %s dim %lld", dtype_name(dt), (long long)c.dim), r.out.doubles(), want,
               [&](size_t i) {
                 return (u + inner_rounding + sum_error) * 1.01 * std::abs(want[i]) + 1e-30;
               });
  if (c.rows > 100) return;  // finite differences of a long vector take long
  const auto loss = [&](const Doubles& input, const Doubles& gain) {
    return inner(norm_reference(c, input, gain, eps), weight);
  };
  Doubles dx = finite_differences(x, [&](const Doubles& input) { return loss(input, w); });
  Doubles dw = finite_differences(w, [&](const Doubles& gain) { return loss(x, gain); });
  for (size_t i = 0; i < dx.size(); ++i) {
    if (!mine[i]) dx[i] = 7;
  }
  // Terms of dx are dout w rstd and their mean: rounding is relative to their size.
  double size = 0.0;
  for (int64_t i = 0; i < r.rstd.size(); ++i) size = std::max(size, r.rstd.get(i));
  for (double v : w) size = std::max(size, size * std::abs(v));
  expect_close("rmsnorm dx", r.dx.doubles(), dx, [&](size_t i) {
    return u * std::abs(dx[i]) + 16 * sum_error * size * 4 + 1e-8;
  });
  for (double& v : dw) v += 0.25;
  const double terms = static_cast<double>(c.rows * c.groups);
  expect_close("rmsnorm dweight", r.dw.doubles(), dw, [&](size_t) {
    return (inner_rounding + sum_error) * 12 * std::sqrt(terms) + 1e-7;
  });
}

TEST(RmsNorm, MatchesReference) {
  for (DType dt : kDTypes) {
    for (const NormCase& c : kNormCases) check_norm(dt, c);
  }
}

// Long enough for several row blocks: the weight gradient against a plain double sum.
TEST(RmsNorm, WeightGradientOfManyRows) {
  const NormCase c{600, 2, 24, 48};
  const NormRun r = run_norm(DType::kF32, c, 1e-6f, test_stream());
  Doubles want(c.dim, 0.25), size(c.dim, 0.25);
  for (int64_t i = 0; i < c.rows * c.groups; ++i) {
    for (int64_t j = 0; j < c.dim; ++j) {
      const double term = r.dout.get(i * c.dim + j) * r.x.get(i * c.dim + j) * r.rstd.get(i);
      want[j] += term;
      size[j] += std::abs(term);
    }
  }
  expect_close("dweight", r.dw.doubles(), want,
               [&](size_t j) { return kEps32 * std::sqrt(1200.0) * size[j]; });
}

TEST(RmsNorm, ThreadsDoNotMatter) {
  for (DType dt : kDTypes) {
    expect_same_bits([&](Stream& s) {
      const NormRun r = run_norm(dt, {700, 2, 40, 100}, 1e-6f, s);
      return r.out.bits() + r.rstd.bits() + r.dx.bits() + r.dw.bits();
    });
  }
}

TEST(RmsNorm, GradientMayOverwriteItsInput) {
  const NormCase c{9, 1, 20, 20};
  const NormRun r = run_norm(DType::kBF16, c, 1e-6f, test_stream());
  TestTensor dout(DType::kBF16, 180), dw(DType::kF32, 20);
  dout.randomise(3);
  dw.fill(0.25);
  ops().rmsnorm_backward(DType::kBF16, r.x.data(), r.w.data(),
                         static_cast<const float*>(r.rstd.data()), dout.data(), 9, 1, 20, 20,
                         dout.data(), dw.floats(), test_stream());
  test_stream().synchronize();
  EXPECT_EQ(dout.bits() == r.dx.bits(), true);
}

// ---- rotary embedding ----

// The first kRotated numbers of each head turn, the others stay as they are.
template <int64_t kRotated>
void check_rope() {
  constexpr int64_t kT = 37, kHeads = 3, kDim = 10, kStride = 41;
  std::vector<int32_t> positions;
  for (int32_t t = 0; t < kT; ++t) positions.push_back(t < 20 ? t * 400 : t - 20);
  for (DType dt : kDTypes) {
    TestTensor x(dt, kT * kStride);
    x.randomise(5);
    const Doubles before = x.doubles();
    Doubles want(before), size(before.size(), 1e-30);
    for (int64_t t = 0; t < kT; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t i = 0; i < kRotated / 2; ++i) {
          const double angle = positions[t] * std::pow(1e6, -2.0 * i / kRotated);
          const int64_t a = t * kStride + h * kDim + i, b = a + kRotated / 2;
          want[a] = before[a] * std::cos(angle) - before[b] * std::sin(angle);
          want[b] = before[b] * std::cos(angle) + before[a] * std::sin(angle);
          size[a] = size[b] = std::abs(before[a]) + std::abs(before[b]);
        }
      }
    }
    Stream& s = test_stream();
    ops().rope(dt, positions.data(), {1e6}, kT, kHeads, kDim, kRotated, kStride, false, x.data(),
               s);
    test_stream().synchronize();
    const double u = rounding_of(dt);
    expect_close(strf("rope %s", dtype_name(dt)), x.doubles(), want, [&](size_t i) {
      return 1.01 * u * std::abs(want[i]) + 3 * kEps32 * size[i];
    });
    ops().rope(dt, positions.data(), {1e6}, kT, kHeads, kDim, kRotated, kStride, true, x.data(), s);
    test_stream().synchronize();
    expect_close(strf("rope and back %s", dtype_name(dt)), x.doubles(), before,
                 [&](size_t i) { return 3 * u * size[i] + 6 * kEps32 * size[i]; });
  }
}

TEST(Rope, MatchesReferenceAndInverts) { check_rope<10>(); }
TEST(Rope, LeavesTheRestOfAHeadAsItIs) {
  check_rope<2>();
  check_rope<6>();
}

// gpt-oss's heads. The numbers are those of Transformers 5.23, which computes them in fp32.
TEST(Rope, FrequenciesByYarnAreTransformers) {
  Rotation rotation{150000.0, 32.0, 4096.0, 32.0, 1.0, false};
  const std::vector<std::pair<int64_t, double>> apart = {{0, 1.0},
                                                         {5, 0.15532298386096954},
                                                         {8, 0.05081327259540558},
                                                         {9, 0.031705696135759354},
                                                         {12, 0.006794959306716919},
                                                         {16, 0.0004564839182421565},
                                                         {17, 0.00012931869423482567},
                                                         {18, 3.830881178146228e-05},
                                                         {31, 3.023511396804679e-07}};
  const std::vector<double> got = rope_frequencies(rotation, 64);
  for (const auto& [i, want] : apart) EXPECT_NEAR(got[i], want, 1e-6 * want) << i;
  rotation.whole_pairs = true;
  const std::vector<double> whole = rope_frequencies(rotation, 64);
  EXPECT_NEAR(whole[12], 0.007015713956207037, 7e-9);
  EXPECT_NEAR(whole[17], 0.0002279478358104825, 3e-10);
  // In a short context even the first pair turns less than fast_turns times: the mix begins there.
  const std::vector<double> brief = rope_frequencies({1e4, 8.0, 64.0, 32.0, 1.0, true}, 32);
  EXPECT_NEAR(brief[0], 1.0, 1e-7);
  EXPECT_NEAR(brief[1], 0.4639315903186798, 1e-7);
  EXPECT_NEAR(brief[3], 0.08446826785802841, 1e-8);
}

// Llama 3.2's heads. The numbers are those of Transformers 5.23, likewise.
TEST(Rope, FrequenciesByTurnsAreTransformers) {
  Rotation rotation{500000.0, 32.0, 8192.0, 4.0, 1.0};
  rotation.by_turns = true;
  const std::vector<std::pair<int64_t, double>> apart = {{0, 1.0},
                                                         {8, 0.03760603093086393},
                                                         {14, 0.0032114459947525913},
                                                         {15, 0.001290547928209264},
                                                         {16, 0.00042955679655936815},
                                                         {17, 9.70828780262767e-05},
                                                         {18, 1.9461638184831125e-05},
                                                         {20, 8.570255489881478e-06},
                                                         {31, 9.418306725434909e-08}};
  const std::vector<double> got = rope_frequencies(rotation, 64);
  for (const auto& [i, want] : apart) EXPECT_NEAR(got[i], want, 2e-6 * want) << i;
}

TEST(Rope, SizeMultipliesBothWays) {
  for (const bool inverse : {false, true}) {
    const std::vector<int32_t> positions = {0, 5, 9};
    TestTensor plain(DType::kF32, 3 * 8), sized(DType::kF32, 3 * 8);
    plain.randomise(4);
    sized.randomise(4);
    ops().rope(DType::kF32, positions.data(), {1e4}, 3, 1, 8, 6, 8, inverse, plain.data(),
               test_stream());
    Rotation rotation{1e4};
    rotation.size = 1.5;
    ops().rope(DType::kF32, positions.data(), rotation, 3, 1, 8, 6, 8, inverse, sized.data(),
               test_stream());
    test_stream().synchronize();
    for (int64_t i = 0; i < 24; ++i) {
      const double factor = i % 8 < 6 ? 1.5 : 1.0;
      EXPECT_NEAR(sized.get(i), factor * plain.get(i), 2e-6) << i;
    }
  }
}

// ---- rows and embedding ----

TEST(Rows, GatherScatterAdd) {
  constexpr int64_t kRows = 50, kN = 20, kDim = 33;
  std::vector<int32_t> rows;
  for (int32_t i = 0; i < kN; ++i) rows.push_back((i * 7 + 3) % kRows);
  for (DType dt : kDTypes) {
    TestTensor x(dt, kRows * kDim), picked(dt, kN * kDim), y(DType::kF32, kRows * kDim);
    TestTensor scale(DType::kF32, kN);
    x.randomise(9);
    y.randomise(10);
    scale.randomise(11);
    Doubles want = y.doubles();
    ops().gather_rows(dt, x.data(), rows.data(), kN, kDim, picked.data(), test_stream());
    ops().scatter_add_rows(dt, picked.data(), rows.data(), scale.floats(), kN, kDim, y.floats(),
                           test_stream());
    ops().scatter_add_rows(dt, picked.data(), rows.data(), nullptr, kN, kDim, y.floats(),
                           test_stream());
    test_stream().synchronize();
    Doubles size(want.size(), 1.0);
    for (int64_t i = 0; i < kN; ++i) {
      for (int64_t j = 0; j < kDim; ++j) {
        EXPECT_EQ(picked.get(i * kDim + j), x.get(rows[i] * kDim + j));
        const double add = x.get(rows[i] * kDim + j) * (scale.get(i) + 1.0);
        want[rows[i] * kDim + j] += add;
        size[rows[i] * kDim + j] += 4 * std::abs(x.get(rows[i] * kDim + j)) + std::abs(add);
      }
    }
    expect_close("scatter", y.doubles(), want,
                 [&](size_t i) { return 4 * kEps32 * (size[i] + 4); });
  }
}

TEST(Rows, RunsAreCopiedToTheirPlaces) {
  constexpr int64_t kDim = 5;
  const std::vector<RowRun> runs = {{7, 0, 2}, {0, 4, 3}, {4, 2, 0}, {3, 9, 1}};
  for (DType dt : kDTypes) {
    TestTensor x(dt, 9 * kDim), out(dt, 10 * kDim);
    x.randomise(12);
    out.randomise(13);
    Doubles want = out.doubles();
    for (const RowRun& run : runs) {
      for (int64_t i = 0; i < run.count * kDim; ++i) {
        want[static_cast<size_t>(run.to * kDim + i)] = x.get(run.from * kDim + i);
      }
    }
    ops().copy_row_runs(dt, x.data(), runs, kDim, out.data(), test_stream());
    test_stream().synchronize();
    EXPECT_EQ(out.doubles(), want);
  }
}

TEST(Rows, AddRoundsOnce) {
  constexpr int64_t kN = 20001;
  for (DType dt : kDTypes) {
    for (DType b_dt : kDTypes) {
      TestTensor a(dt, kN), b(b_dt, kN), out(dt, kN);
      a.randomise(12);
      b.randomise(13);
      ops().add(dt, a.data(), b_dt, b.data(), kN, out.data(), test_stream());
      const Doubles x = a.doubles(), y = b.doubles();
      test_stream().synchronize();
      for (int64_t i = 0; i < kN; ++i) {
        const float sum = static_cast<float>(x[i]) + static_cast<float>(y[i]);
        const double want = dt == DType::kF32 ? sum : to_float(bf16_round(sum));
        ASSERT_EQ(out.get(i), want) << i;
      }
      ops().add(dt, a.data(), b_dt, b.data(), kN, a.data(), test_stream());
      test_stream().synchronize();
      EXPECT_EQ(a.bits() == out.bits(), true) << "in place differs";
    }
  }
}

TEST(Rows, ScaleRoundsOnce) {
  constexpr int64_t kRows = 700, kDim = 33;
  TestTensor x(DType::kF32, kRows * kDim), scale(DType::kF32, kRows);
  x.randomise(14);
  scale.randomise(15);
  const Doubles before = x.doubles();
  ops().scale_rows(scale.floats(), kRows, kDim, x.floats(), test_stream());
  test_stream().synchronize();
  for (int64_t i = 0; i < kRows * kDim; ++i) {
    const float want = static_cast<float>(before[i]) * static_cast<float>(scale.get(i / kDim));
    ASSERT_EQ(x.get(i), want) << i;
  }
}

TEST(Rows, ScaleByOneFactorRoundsOnce) {
  constexpr int64_t kN = 70001;
  constexpr float kFactor = 54.545456f;
  for (DType dt : kDTypes) {
    TestTensor x(dt, kN);
    x.randomise(16);
    const Doubles before = x.doubles();
    ops().scale(dt, kFactor, kN, x.data(), test_stream());
    test_stream().synchronize();
    for (int64_t i = 0; i < kN; ++i) {
      const float exact = kFactor * static_cast<float>(before[i]);
      ASSERT_EQ(x.get(i), dt == DType::kF32 ? exact : to_float(bf16_round(exact))) << i;
    }
  }
}

TEST(Rows, FillZero) {
  TestTensor x(DType::kF32, 300001);
  x.fill(1);
  ops().fill_zero(x.data(), x.bytes(), test_stream());
  test_stream().synchronize();
  for (double v : x.doubles()) ASSERT_EQ(v, 0.0);
}

TEST(Embedding, RowsOutAndGradientsIn) {
  constexpr int64_t kT = 40, kVocab = 9, kDim = 70;
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < kT; ++t) ids.push_back(t * t % kVocab);
  for (DType dt : kDTypes) {
    TestTensor table(dt, kVocab * kDim), out(dt, kT * kDim), dout(dt, kT * kDim);
    table.randomise(14);
    dout.randomise(15);
    ops().embedding(dt, ids.data(), table.data(), kT, kDim, out.data(), test_stream());
    test_stream().synchronize();
    for (int64_t t = 0; t < kT * kDim; ++t) {
      ASSERT_EQ(out.get(t), table.get(ids[t / kDim] * kDim + t % kDim));
    }
    for (const int64_t pad_token : {int64_t{-1}, int64_t{ids[0]}}) {
      Doubles want(kVocab * kDim, 0.5), size(kVocab * kDim, 0.5);
      for (int64_t t = 0; t < kT; ++t) {
        for (int64_t j = 0; j < kDim && ids[t] != pad_token; ++j) {
          want[ids[t] * kDim + j] += dout.get(t * kDim + j);
          size[ids[t] * kDim + j] += std::abs(dout.get(t * kDim + j));
        }
      }
      expect_same_bits([&](Stream& s) {
        TestTensor dtable(DType::kF32, kVocab * kDim);
        dtable.fill(0.5);
        ops().embedding_backward(dt, ids.data(), dout.data(), kT, kDim, pad_token, dtable.floats(),
                                 s);
        s.synchronize();
        expect_close("dtable", dtable.doubles(), want,
                     [&](size_t i) { return 8 * kEps32 * size[i]; });
        return dtable.bits();
      });
    }
  }
}

// ---- finished gradients ----

TEST(FinishGradient, RoundsAndMeasures) {
  constexpr int64_t kN = 70001;
  for (DType dt : kDTypes) {
    TestTensor g(DType::kF32, kN);
    g.randomise(16);
    expect_same_bits([&](Stream& s) {
      TestTensor out(dt, kN);
      double square_sum = 0.0;
      ops().finish_gradient(dt, g.floats(), kN, out.data(), &square_sum, s);
      s.synchronize();
      for (int64_t i = 0; i < kN; ++i) {
        const float v = static_cast<float>(g.get(i));
        EXPECT_EQ(out.get(i), dt == DType::kF32 ? v : to_float(bf16_round(v)));
      }
      const Doubles x = out.doubles();
      EXPECT_NEAR(square_sum, inner(x, x), 1e-12 * square_sum);
      return out.bits() + std::string(reinterpret_cast<const char*>(&square_sum), 8);
    });
  }
}

TEST(FinishGradient, NonFiniteShows) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (DType dt : kDTypes) {
      TestTensor g(DType::kF32, 5000), out(dt, 5000);
      g.randomise(17).set(4321, bad);
      double square_sum = 0.0;
      ops().finish_gradient(dt, g.floats(), 5000, out.data(), &square_sum, test_stream());
      test_stream().synchronize();
      EXPECT_FALSE(std::isfinite(square_sum));
    }
  }
}

}  // namespace
}  // namespace pagoda
