// Attention and its gradient against a double-precision reference, whose own gradient is checked by
// finite differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/testing/op_testing.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

struct Case {
  AttentionShape shape;
  std::vector<int32_t> starts;
  bool has_sinks = false;
  int64_t documents() const { return static_cast<int64_t>(starts.size()) - 1; }
};

// q, k, v as one fused projection (tokens, (heads + 2 kv_heads) * head_dim).
Case make_case(int64_t heads, int64_t kv_heads, int64_t head_dim, std::vector<int32_t> starts) {
  Case c;
  c.shape = {starts.back(), heads, kv_heads, head_dim, (heads + 2 * kv_heads) * head_dim};
  c.starts = std::move(starts);
  return c;
}

Case with(Case c, int64_t window, bool has_sinks) {
  c.shape.window = window;
  c.has_sinks = has_sinks;
  return c;
}

struct Layout {
  explicit Layout(const AttentionShape& s)
      : k(s.heads * s.head_dim), v(k + s.kv_heads * s.head_dim) {}
  int64_t k, v;  // columns of the fused projection
};

// One query's view of its keys in the double reference: probabilities over [begin, t].
struct Row {
  int64_t begin;
  Doubles p;
  double lse;
};

class Reference {
 public:
  // sinks (heads), or none
  Reference(const Case& c, Doubles qkv, Doubles sinks = {})
      : c_(c), s_(c.shape), at_(s_), qkv_(std::move(qkv)), sinks_(std::move(sinks)) {}

  double q(int64_t t, int64_t h, int64_t d) const {
    return qkv_[t * s_.qkv_stride + h * s_.head_dim + d];
  }
  double k(int64_t t, int64_t h, int64_t d) const {
    return qkv_[t * s_.qkv_stride + at_.k + h / group() * s_.head_dim + d];
  }
  double v(int64_t t, int64_t h, int64_t d) const {
    return qkv_[t * s_.qkv_stride + at_.v + h / group() * s_.head_dim + d];
  }
  int64_t group() const { return s_.heads / s_.kv_heads; }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(s_.head_dim)); }

  Row row(int64_t t, int64_t h) const {
    const auto after = std::upper_bound(c_.starts.begin(), c_.starts.end(), t);
    Row r{*(after - 1), {}, 0.0};
    if (s_.window > 0) r.begin = std::max(r.begin, t - s_.window + 1);
    double highest = sinks_.empty() ? -1e300 : sinks_[h], sum = 0.0;
    for (int64_t j = r.begin; j <= t; ++j) {
      double score = 0.0;
      for (int64_t d = 0; d < s_.head_dim; ++d) score += q(t, h, d) * k(j, h, d);
      r.p.push_back(score * scale());
      highest = std::max(highest, r.p.back());
    }
    for (double& p : r.p) sum += (p = std::exp(p - highest));
    if (!sinks_.empty()) sum += std::exp(sinks_[h] - highest);
    for (double& p : r.p) p /= sum;
    r.lse = highest + std::log(sum);
    return r;
  }

  // out, and sum p |v|: what a relative error of the probabilities is multiplied with.
  void forward(Doubles& out, Doubles& magnitude, Doubles& lse) const {
    out.assign(s_.tokens * s_.heads * s_.head_dim, 0.0);
    magnitude = out;
    lse.assign(s_.heads * s_.tokens, 0.0);
    for (int64_t t = 0; t < s_.tokens; ++t) {
      for (int64_t h = 0; h < s_.heads; ++h) {
        const Row r = row(t, h);
        lse[h * s_.tokens + t] = r.lse;
        for (size_t j = 0; j < r.p.size(); ++j) {
          for (int64_t d = 0; d < s_.head_dim; ++d) {
            const double term = r.p[j] * v(r.begin + static_cast<int64_t>(j), h, d);
            out[(t * s_.heads + h) * s_.head_dim + d] += term;
            magnitude[(t * s_.heads + h) * s_.head_dim + d] += std::abs(term);
          }
        }
      }
    }
  }

  // dqkv, and for each element the sum of what its terms could be off by per unit of relative
  // rounding: |ds| + p sum|dout out| (D is computed from a rounded out) for q and k, p |dout| for
  // v.
  void backward(const Doubles& dout, Doubles& dqkv, Doubles& magnitude) const {
    dqkv.assign(qkv_.size(), 0.0);
    magnitude = dqkv;
    Doubles out, unused, lse;
    forward(out, unused, lse);
    for (int64_t t = 0; t < s_.tokens; ++t) {
      for (int64_t h = 0; h < s_.heads; ++h) {
        const int64_t row = (t * s_.heads + h) * s_.head_dim;
        add_row(t, h, out.data() + row, dout.data() + row, dqkv, magnitude);
      }
    }
  }

 private:
  void add_row(int64_t t, int64_t h, const double* out, const double* dout, Doubles& dqkv,
               Doubles& magnitude) const {
    const Row r = row(t, h);
    double delta = 0.0, delta_size = 0.0;
    for (int64_t d = 0; d < s_.head_dim; ++d) {
      delta += out[d] * dout[d];
      delta_size += std::abs(out[d] * dout[d]);
    }
    const auto add = [&](int64_t i, double term, double size) {
      dqkv[i] += term;
      magnitude[i] += std::abs(size);
    };
    for (size_t j = 0; j < r.p.size(); ++j) {
      const int64_t key = r.begin + static_cast<int64_t>(j), kv = h / group() * s_.head_dim;
      double dp = 0.0, dp_size = 0.0;
      for (int64_t d = 0; d < s_.head_dim; ++d) {
        dp += dout[d] * v(key, h, d);
        dp_size += std::abs(dout[d] * v(key, h, d));
      }
      const double ds = r.p[j] * (dp - delta) * scale();
      const double size = r.p[j] * (dp_size + 2 * delta_size) * scale();
      for (int64_t d = 0; d < s_.head_dim; ++d) {
        add(t * s_.qkv_stride + h * s_.head_dim + d, ds * k(key, h, d), size * k(key, h, d));
        add(key * s_.qkv_stride + at_.k + kv + d, ds * q(t, h, d), size * q(t, h, d));
        add(key * s_.qkv_stride + at_.v + kv + d, r.p[j] * dout[d], r.p[j] * dout[d]);
      }
    }
  }

  const Case& c_;
  const AttentionShape s_;
  const Layout at_;
  const Doubles qkv_, sinks_;
};

void* column(TestTensor& t, int64_t i) {
  return static_cast<std::byte*>(t.data()) + i * dtype_bytes(t.dtype());
}

struct Result {
  TestTensor qkv, out, lse, dout, dqkv, sinks, dsinks;
  Doubles sink_values() const { return sinks.doubles(); }
};

Result run(DType dt, const Case& c, Stream& s, double scale = 1.0) {
  AttentionShape shape = c.shape;
  const Layout layout(shape);
  const int64_t sinks = c.has_sinks ? shape.heads : 0;
  const int64_t size = shape.tokens * shape.qkv_stride;
  const int64_t out_size = shape.tokens * shape.heads * shape.head_dim;
  Result r{TestTensor(dt, size),
           TestTensor(dt, out_size),
           TestTensor(DType::kF32, shape.heads * shape.tokens),
           TestTensor(dt, out_size),
           TestTensor(dt, size),
           TestTensor(dt, sinks),
           TestTensor(DType::kF32, sinks)};
  r.qkv.randomise(41, scale);
  r.dout.randomise(42);
  r.sinks.randomise(45, 2.0);
  r.dsinks.fill(0.5);
  if (c.has_sinks) shape.sinks = r.sinks.data();
  cpu_ops().attention(dt, shape, c.starts.data(), c.documents(), r.qkv.data(),
                      column(r.qkv, layout.k), column(r.qkv, layout.v), r.out.data(),
                      r.lse.floats(), s);
  cpu_ops().attention_backward(dt, shape, c.starts.data(), c.documents(), r.qkv.data(),
                               column(r.qkv, layout.k), column(r.qkv, layout.v), r.out.data(),
                               r.lse.floats(), r.dout.data(), r.dqkv.data(),
                               column(r.dqkv, layout.k), column(r.dqkv, layout.v), s);
  if (c.has_sinks) {
    cpu_ops().attention_sinks_backward(dt, shape, r.out.data(), r.lse.floats(), r.dout.data(),
                                       r.dsinks.floats(), s);
  }
  s.synchronize();
  return r;
}

Doubles plus(Doubles values, double more) {
  for (double& v : values) v += more;
  return values;
}

// fp32: scores carry an error of about sqrt(head_dim) eps times their size, which the exponential
// turns into a relative error of p; sums over keys add sqrt(keys) eps. bf16: p, ds, out are
// rounded.
double relative_error(DType dt, const Case& c) {
  const double terms = static_cast<double>(c.shape.head_dim + c.shape.tokens);
  return (dt == DType::kBF16 ? 2 * kEpsBf16 : 0.0) + 8 * kEps32 * (std::sqrt(terms) + 8);
}

void check(DType dt, const Case& c) {
  const Result r = run(dt, c, test_stream());
  if (kUnderSanitizer) return;  // what matters there has run; the reference takes minutes
  const Reference reference(c, r.qkv.doubles(), r.sink_values());
  Doubles out, magnitude, lse, dqkv, gradient_magnitude;
  reference.forward(out, magnitude, lse);
  const double relative = relative_error(dt, c);
  const std::string name = strf("%s, %lld tokens in %lld documents, head_dim %lld", dtype_name(dt),
                                static_cast<long long>(c.shape.tokens),
                                static_cast<long long>(c.documents()),
                                static_cast<long long>(c.shape.head_dim));
  expect_close("out of " + name, r.out.doubles(), out,
               [&](size_t i) { return relative * magnitude[i] + 1e-30; });
  expect_close("lse of " + name, r.lse.doubles(), lse,
               [&](size_t i) { return 16 * kEps32 * (8 + std::abs(lse[i])); });
  reference.backward(r.dout.doubles(), dqkv, gradient_magnitude);
  expect_close("dqkv of " + name, r.dqkv.doubles(), dqkv,
               [&](size_t i) { return 2 * relative * gradient_magnitude[i] + 1e-30; });
  if (!c.has_sinks) return;
  const Doubles dout = r.dout.doubles();
  const Doubles dsinks = finite_differences(r.sink_values(), [&](const Doubles& sinks) {
    Doubles changed, unused, of_rows;
    Reference(c, r.qkv.doubles(), sinks).forward(changed, unused, of_rows);
    return inner(changed, dout);
  });
  // Each row adds p times sum dout out; the rows' roundings are of either sign.
  const double rows = std::sqrt(static_cast<double>(c.shape.tokens * c.shape.head_dim)) * 4;
  expect_close("dsinks of " + name, r.dsinks.doubles(), plus(dsinks, 0.5),
               [&](size_t) { return relative * rows + 1e-6; });
}

TEST(Attention, ReferenceGradientIsTheDerivative) {
  const Case c = make_case(4, 2, 4, {0, 3, 3, 8});
  TestTensor qkv(DType::kF32, c.shape.tokens * c.shape.qkv_stride);
  TestTensor dout(DType::kF32, c.shape.tokens * c.shape.heads * c.shape.head_dim);
  qkv.randomise(43);
  dout.randomise(44);
  const Doubles weight = dout.doubles();
  Doubles analytic, unused;
  Reference(c, qkv.doubles()).backward(weight, analytic, unused);
  const Doubles numeric = finite_differences(qkv.doubles(), [&](const Doubles& x) {
    Doubles out, magnitude, lse;
    Reference(c, x).forward(out, magnitude, lse);
    return inner(out, weight);
  });
  // Central differences with step 1e-5: h^2 f''' and eps/h are both below 1e-8.
  expect_close("reference", analytic, numeric, [](size_t) { return 1e-7; });
}

TEST(Attention, MatchesReference) {
  for (DType dt : kDTypes) {
    check(dt, make_case(1, 1, 2, {0, 1}));
    check(dt, make_case(2, 1, 8, {0, 1, 3, 20}));
    check(dt, make_case(4, 2, 32, {0, 5, 70, 70, 199}));
    check(dt, make_case(2, 2, 64, {0, 300}));
    check(dt, make_case(3, 1, 96, {0, 128, 129, 260}));
    check(dt, make_case(2, 1, 128, {0, 64, 193}));
  }
}

// Windows shorter and longer than blocks, chunks and documents.
TEST(Attention, WindowsAndSinksMatchReference) {
  for (DType dt : kDTypes) {
    for (const int64_t window : {0, 1, 2, 3, 64, 127, 128, 129, 250, 1000}) {
      check(dt, with(make_case(2, 1, 8, {0, 1, 3, 20, 331}), window, window % 2 == 0));
    }
    check(dt, with(make_case(4, 2, 32, {0, 5, 70, 70, 199}), 40, true));
    check(dt, with(make_case(4, 2, 32, {0, 5, 70, 70, 199}), 0, true));
    check(dt, with(make_case(3, 1, 96, {0, 128, 129, 460}), 33, true));
  }
}

// A window as long as the longest document is none, to the bit.
TEST(Attention, AWindowOfADocumentIsNone) {
  const Case c = make_case(2, 1, 16, {0, 150, 400});
  const Result a = run(DType::kF32, c, test_stream());
  const Result b = run(DType::kF32, with(c, 250, false), test_stream());
  EXPECT_TRUE(a.out.bits() == b.out.bits() && a.dqkv.bits() == b.dqkv.bits());
}

// More blocks than one span holds, and more heads than are packed at once.
TEST(Attention, MatchesReferenceOverManyDocuments) {
  std::vector<int32_t> starts{0};
  for (int i = 0; i < 80; ++i) starts.push_back(starts.back() + 1 + i % 5);
  check(DType::kF32, make_case(4, 4, 16, starts));
}

TEST(Attention, NoTokensIsNothing) {
  for (const std::vector<int32_t>& starts : {std::vector<int32_t>{0}, {0, 0}}) {
    const Result r = run(DType::kF32, make_case(2, 1, 8, starts), test_stream());
    EXPECT_TRUE(r.out.doubles().empty() && r.dqkv.doubles().empty());
  }
}

// Scores far from zero must not overflow: the maximum is taken out first.
TEST(Attention, LargeScoresStayFinite) {
  for (DType dt : kDTypes) {
    const Result r = run(dt, make_case(2, 1, 16, {0, 150}), test_stream(), 30.0);
    for (const TestTensor* t : {&r.out, &r.lse, &r.dqkv}) {
      for (double x : t->doubles()) ASSERT_TRUE(std::isfinite(x)) << dtype_name(dt);
    }
  }
}

TEST(Attention, ThreadsDoNotMatter) {
  for (DType dt : kDTypes) {
    for (const int64_t window : {0, 90}) {
      const Case c = with(make_case(4, 2, 32, {0, 100, 101, 420}), window, window > 0);
      expect_same_bits([&](Stream& s) {
        const Result r = run(dt, c, s);
        return r.out.bits() + r.lse.bits() + r.dqkv.bits() + r.dsinks.bits();
      });
    }
  }
}

// A document's bits do not depend on its neighbours.
TEST(Attention, DocumentsDoNotMeet) {
  for (DType dt : kDTypes) {
    const Case both = make_case(2, 1, 16, {0, 150, 400}), alone = make_case(2, 1, 16, {0, 150});
    const Result a = run(dt, both, test_stream()), b = run(dt, alone, test_stream());
    const auto prefix = [&](const TestTensor& t, const TestTensor& shorter) {
      return t.bits().substr(0, shorter.bytes()) == shorter.bits();
    };
    ASSERT_TRUE(prefix(a.qkv, b.qkv) && prefix(a.dout, b.dout)) << "the inputs should agree";
    EXPECT_TRUE(prefix(a.out, b.out)) << dtype_name(dt);
    EXPECT_TRUE(prefix(a.dqkv, b.dqkv)) << dtype_name(dt);
  }
}

}  // namespace
}  // namespace pagoda
