// Attention, its gradient, and attention over a cache.
#include <cmath>

#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

struct Case {
  int64_t heads, kv_heads, head_dim;
  std::vector<int32_t> starts;
  int64_t window = 0;
  bool has_sinks = false;

  int64_t tokens() const { return starts.back(); }
  int64_t documents() const { return static_cast<int64_t>(starts.size()) - 1; }
  int64_t stride() const { return (heads + 2 * kv_heads) * head_dim; }
  AttentionShape shape() const { return {tokens(), heads, kv_heads, head_dim, stride(), window}; }
  // The first key that row t of a document from `begin` on sees.
  int64_t first_key(int64_t begin, int64_t t) const {
    return window > 0 ? std::max(begin, t - window + 1) : begin;
  }
  int64_t longest() const {
    int64_t most = 1;
    for (size_t i = 1; i < starts.size(); ++i) {
      most = std::max<int64_t>(most, starts[i] - starts[i - 1]);
    }
    return most;
  }
};

std::string named(const char* op, DType dt, const Case& c) {
  const std::string window = c.window > 0 ? strf(", windows of %lld", (long long)c.window) : "";
  return strf("%s %s %lld tokens in %lld documents, %lld/%lld heads of %lld%s%s", op,
              dtype_name(dt), static_cast<long long>(c.tokens()),
              static_cast<long long>(c.documents()), static_cast<long long>(c.heads),
              static_cast<long long>(c.kv_heads), static_cast<long long>(c.head_dim),
              window.c_str(), c.has_sinks ? ", sinks" : "");
}

// Scores carry an error of head_dim steps of their size, which the exponential makes one relative
// to a probability; sums over keys add theirs. What is rounded to dt (p, ds, the result) is off by
// dt's rounding. On both sides.
double relative_error(DType dt, const Case& c) {
  const double step = dt == DType::kBF16 ? 0x1p-22 : 0x1p-24;
  const double terms = std::sqrt(static_cast<double>(c.head_dim + c.longest())) + 8;
  return 2 * ((dt == DType::kBF16 ? 2 * kEpsBf16 : 0.0) + 8 * step * terms);
}

// What the results' sums are made of, in double: sum p |v| for the output; for q and k the sums of
// |ds| with the parts of ds at their sizes, D at twice (it comes of a rounded output); for v sum
// p |dout|.
struct Sizes {
  std::vector<double> out, dqkv;
};

class Sizing {
 public:
  Sizing(const Case& c, const Tensor& qkv, const Tensor& dout)
      : c_(c), qkv_(values(qkv)), dout_(values(dout)) {
    sizes_.out.assign(dout_.size(), 0.0);
    sizes_.dqkv.assign(qkv_.size(), 0.0);
    for (int64_t d = 0; d < c.documents(); ++d) {
      const int64_t begin = c.starts[static_cast<size_t>(d)];
      for (int64_t t = begin; t < c.starts[static_cast<size_t>(d) + 1]; ++t) {
        for (int64_t h = 0; h < c.heads; ++h) add_row(c.first_key(begin, t), t, h);
      }
    }
  }
  const Sizes& sizes() const { return sizes_; }

 private:
  static std::vector<double> values(const Tensor& t) {
    std::vector<double> all;
    for (int64_t i = 0; i < t.n; ++i) all.push_back(before(t, i));
    return all;
  }
  // Elements of q, k, v: part 0, 1, 2.
  size_t at(int part, int64_t t, int64_t h, int64_t d) const {
    const int64_t kv = h / (c_.heads / c_.kv_heads);
    const int64_t head = part == 0 ? h : c_.heads + (part - 1) * c_.kv_heads + kv;
    return static_cast<size_t>(t * c_.stride() + head * c_.head_dim + d);
  }
  double dot(size_t a, size_t b) const {
    double sum = 0.0;
    for (size_t d = 0; d < static_cast<size_t>(c_.head_dim); ++d) sum += qkv_[a + d] * qkv_[b + d];
    return sum;
  }
  void add_row(int64_t begin, int64_t t, int64_t h) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(c_.head_dim));
    const auto row = static_cast<size_t>((t * c_.heads + h) * c_.head_dim);
    std::vector<double> p;
    double highest = -1e300, sum = 0.0, delta = 0.0;
    for (int64_t j = begin; j <= t; ++j) {
      p.push_back(dot(at(0, t, h, 0), at(1, j, h, 0)) * scale);
      highest = std::max(highest, p.back());
    }
    for (double& x : p) sum += (x = std::exp(x - highest));
    const auto dims = static_cast<size_t>(c_.head_dim);
    for (size_t d = 0; d < dims; ++d) {
      double out = 0.0;
      for (size_t j = 0; j < p.size(); ++j) {
        const double term = p[j] / sum * qkv_[at(2, begin + int64_t(j), h, int64_t(d))];
        out += term;
        sizes_.out[row + d] += std::abs(term);
      }
      delta += std::abs(out * dout_[row + d]);
    }
    for (size_t j = 0; j < p.size(); ++j) {
      const int64_t key = begin + static_cast<int64_t>(j);
      double dp = 0.0;
      for (size_t d = 0; d < dims; ++d) {
        dp += std::abs(dout_[row + d] * qkv_[at(2, key, h, int64_t(d))]);
      }
      const double ds = p[j] / sum * (dp + 2 * delta) * scale;
      for (int64_t d = 0; d < c_.head_dim; ++d) {
        sizes_.dqkv[at(0, t, h, d)] += ds * std::abs(qkv_[at(1, key, h, d)]);
        sizes_.dqkv[at(1, key, h, d)] += ds * std::abs(qkv_[at(0, t, h, d)]);
        sizes_.dqkv[at(2, key, h, d)] += p[j] / sum * std::abs(dout_[row + size_t(d)]);
      }
    }
  }

  const Case& c_;
  const std::vector<double> qkv_, dout_;
  Sizes sizes_;
};

double largest(const Tensor& t) {
  double most = 0.0;
  for (int64_t i = 0; i < t.n; ++i) most = std::max(most, std::abs(before(t, i)));
  return most;
}

void add_attention(DType dt, const Case& c, std::vector<OpCase>& cases) {
  cases.push_back(
      {named("attention", dt, c), [=](Trial& t) {
         const int64_t bytes = dtype_bytes(dt), k = c.heads * c.head_dim * bytes;
         const int64_t v = k + c.kv_heads * c.head_dim * bytes;
         Tensor &qkv = t.random(dt, c.tokens() * c.stride(), 71),
                &out = t.filled(dt, c.tokens() * c.heads * c.head_dim);
         Tensor &lse = t.filled(DType::kF32, c.heads * c.tokens()), &dout = t.random(dt, out.n, 72);
         Tensor& dqkv = t.filled(dt, qkv.n);
         Tensor &sinks = t.random(dt, c.heads, 76), &dsinks = t.random(DType::kF32, c.heads, 77);
         t.run([&](Ops& ops, const At& at, Stream& s) {
           AttentionShape shape = c.shape();
           if (c.has_sinks) shape.sinks = at(sinks);
           ops.attention(dt, shape, c.starts.data(), c.documents(), at(qkv), at(qkv) + k,
                         at(qkv) + v, at(out), at(lse), s);
           ops.attention_backward(dt, shape, c.starts.data(), c.documents(), at(qkv), at(qkv) + k,
                                  at(qkv) + v, at(out), at(lse), at(dout), at(dqkv), at(dqkv) + k,
                                  at(dqkv) + v, s);
           if (!c.has_sinks) return;
           ops.attention_sinks_backward(dt, shape, at(out), at(lse), at(dout), at(dsinks), s);
         });
         // A row's part has p at most 1; its parts are of either sign.
         t.expect_close("dsinks", dsinks, [&](int64_t) {
           const double rows = std::sqrt(static_cast<double>(c.tokens() * c.head_dim)) * 4;
           return relative_error(dt, c) * rows + 1e-6;
         });
         const double relative = relative_error(dt, c);
         const Sizes sizes = Sizing(c, qkv, dout).sizes();
         t.expect_close("out", out,
                        [&](int64_t i) { return relative * sizes.out[size_t(i)] + 1e-30; });
         t.expect_close("lse", lse, [&](int64_t i) {
           return (dt == DType::kBF16 ? 128 : 32) * kEps32 * (8 + std::abs(want(lse, i)));
         });
         t.expect_close("dqkv", dqkv,
                        [&](int64_t i) { return 2 * relative * sizes.dqkv[size_t(i)] + 1e-30; });
       }});
}

// A document's bits do not depend on its neighbours.
void add_alone(DType dt, const Case& c, std::vector<OpCase>& cases) {
  cases.push_back({named("attention, documents alone,", dt, c), [=](Trial& t) {
    const int64_t bytes = dtype_bytes(dt), k = c.heads * c.head_dim * bytes;
    const int64_t v = k + c.kv_heads * c.head_dim * bytes, row = c.heads * c.head_dim;
    Tensor &qkv = t.random(dt, c.tokens() * c.stride(), 73), &out = t.filled(dt, c.tokens() * row);
    Tensor& lse = t.filled(DType::kF32, c.heads * c.tokens());
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.attention(dt, c.shape(), c.starts.data(), c.documents(), at(qkv), at(qkv) + k,
                    at(qkv) + v, at(out), at(lse), s);
    });
    const auto together = out.got;
    t.run([&](Ops& ops, const At& at, Stream& s) {
      for (int64_t d = 0; d < c.documents(); ++d) {
        const int64_t begin = c.starts[static_cast<size_t>(d)];
        const int32_t alone[] = {0, static_cast<int32_t>(c.starts[size_t(d) + 1] - begin)};
        AttentionShape shape = c.shape();
        shape.tokens = alone[1];
        const int64_t at_row = begin * c.stride() * bytes;
        ops.attention(dt, shape, alone, 1, at(qkv) + at_row, at(qkv) + at_row + k,
                      at(qkv) + at_row + v, at(out) + begin * row * bytes, at(lse), s);
      }
    });
    if (out.got != together) t.fail("out: other bits for documents alone");
  }});
}

void add_cached(DType dt, int64_t heads, int64_t kv_heads, int64_t dim, int64_t past,
                int64_t window, std::vector<OpCase>& cases) {
  const Case c{heads, kv_heads, dim, {0, 3}, window, window > 0};
  cases.push_back({named("cached_attention", dt, c), [=](Trial& t) {
    constexpr int64_t kSequences = 2, kTokens = 3;
    const int64_t capacity = past + 3, bytes = dtype_bytes(dt);
    const int64_t k = c.heads * c.head_dim * bytes, v = k + c.kv_heads * c.head_dim * bytes;
    const auto p = static_cast<int32_t>(past);
    Tensor &sequence = t.ints({1, 0, 1}), &position = t.ints({p, p / 2, p + 1});
    Tensor &qkv = t.random(dt, kTokens * c.stride(), 74), &out =
        t.filled(dt, kTokens * heads * dim);
    Tensor& cache = t.random(dt, kSequences * capacity * 2 * kv_heads * dim, 75);
    Tensor& sinks = t.random(dt, heads, 78);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      AttentionShape shape = c.shape();
      if (c.has_sinks) shape.sinks = at(sinks);
      ops.cached_attention(dt, shape, capacity, at(sequence), at(position), at(qkv), at(qkv) + k,
                           at(qkv) + v, at(cache), at(out), s);
    });
    t.expect_same("cache", cache);
    const double terms = static_cast<double>(dim + past + 16);
    t.expect_close("out", out, [&](int64_t i) {
      return 8 * kEps32 * terms * largest(cache) + 2.02 * rounding_of(dt) * std::abs(want(out, i));
    });
  }});
}

}  // namespace

std::vector<OpCase> attention_cases() {
  std::vector<OpCase> cases;
  for (DType dt : kDTypes) {
    add_attention(dt, {2, 1, 8, {0, 1, 3, 20}}, cases);
    add_attention(dt, {4, 2, 64, {0, 5, 70, 70, 150}}, cases);
    add_attention(dt, {2, 2, 96, {0, 65}}, cases);
    add_attention(dt, {3, 1, 128, {0, 40, 41, 107}}, cases);
    add_attention(dt, {2, 1, 10, {0, 37}}, cases);
    add_attention(dt, {1, 1, 64, {0, 0}}, cases);
    add_alone(dt, {2, 1, 64, {0, 3, 72, 90}}, cases);
    for (const int64_t window : {1, 16, 33, 64, 100}) {
      add_attention(dt, {4, 2, 64, {0, 5, 70, 70, 230}, window, window % 2 == 0}, cases);
    }
    add_attention(dt, {3, 1, 128, {0, 40, 41, 107}, 0, true}, cases);
    add_attention(dt, {2, 1, 10, {0, 37}, 7, true}, cases);
    for (const int64_t window : {0, 7, 150}) {
      add_cached(dt, 4, 2, 32, 0, window, cases);
      add_cached(dt, 2, 1, 200, 300, window, cases);
    }
  }
  return cases;
}

// A library's own limits are for it to tell.
std::vector<OpCase> library_attention_cases() {
  std::vector<OpCase> cases;
  for (const std::vector<int32_t>& starts :
       {std::vector<int32_t>{0, 300}, {0, 5, 70, 70, 150}, {0, 40, 41, 107}, {0, 128, 256, 384}}) {
    add_attention(DType::kBF16, {4, 4, 64, starts}, cases);
    add_attention(DType::kBF16, {4, 1, 96, starts}, cases);
    add_attention(DType::kBF16, {6, 2, 128, starts}, cases);
  }
  return cases;
}

}  // namespace pagoda::check
