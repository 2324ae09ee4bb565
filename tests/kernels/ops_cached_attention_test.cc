// Attention over cached keys against a double-precision reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

// Sequences of these lengths; what is new in a call is up to the test.
struct Case {
  int64_t heads, kv_heads, head_dim;
  std::vector<int32_t> lengths;
  int64_t window = 0;
  bool has_sinks = false;
  int64_t capacity() const { return *std::max_element(lengths.begin(), lengths.end()) + 3; }
  int64_t kv_dim() const { return kv_heads * head_dim; }
  int64_t q_dim() const { return heads * head_dim; }
  int64_t stride() const { return q_dim() + 2 * kv_dim(); }
  std::string name(DType dt) const {
    return strf("%s, %lld/%lld heads of %lld", dtype_name(dt), (long long)heads,
                (long long)kv_heads, (long long)head_dim);
  }
};

// A token of a sequence.
struct Token {
  int32_t sequence, position;
};

std::vector<Token> all_tokens(const Case& c) {
  std::vector<Token> tokens;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    for (int32_t p = 0; p < c.lengths[s]; ++p) tokens.push_back({static_cast<int32_t>(s), p});
  }
  return tokens;
}

// q, k, v of one token as a fused projection: the same wherever the token turns up.
void fill_row(const Case& c, DType dt, Token token, double scale, std::byte* row) {
  TestTensor values(dt, c.stride());
  values.randomise(61 + static_cast<uint64_t>(token.sequence * 1000 + token.position), scale);
  std::memcpy(row, values.data(), static_cast<size_t>(values.bytes()));
}

// (heads), or none
TestTensor sinks_of(const Case& c, DType dt) {
  TestTensor sinks(dt, c.has_sinks ? c.heads : 0);
  sinks.randomise(60, 2.0);
  return sinks;
}

class Cache {
 public:
  Cache(const Case& c, DType dt, double scale = 1.0)
      : c_(c),
        dt_(dt),
        scale_(scale),
        memory_(dt, static_cast<int64_t>(c.lengths.size()) * c.capacity() * 2 * c.kv_dim()) {
    memory_.fill(1e30);  // a key or value that was never stored would show
  }

  // One call with these new tokens. (T, heads head_dim)
  TestTensor call(const std::vector<Token>& tokens, Stream& s) {
    const auto n = static_cast<int64_t>(tokens.size());
    TestTensor qkv(dt_, n * c_.stride()), out(dt_, n * c_.q_dim());
    std::vector<int32_t> sequence, position;
    for (int64_t t = 0; t < n; ++t) {
      fill_row(c_, dt_, tokens[t], scale_,
               static_cast<std::byte*>(qkv.data()) + t * c_.stride() * dtype_bytes(dt_));
      sequence.push_back(tokens[t].sequence);
      position.push_back(tokens[t].position);
    }
    const auto part = [&](int64_t i) {
      return static_cast<std::byte*>(qkv.data()) + i * dtype_bytes(dt_);
    };
    TestTensor sinks = sinks_of(c_, dt_);
    const AttentionShape shape{n,
                               c_.heads,
                               c_.kv_heads,
                               c_.head_dim,
                               c_.stride(),
                               c_.window,
                               c_.has_sinks ? sinks.data() : nullptr};
    cpu_ops().cached_attention(dt_, shape, c_.capacity(), sequence.data(), position.data(),
                               qkv.data(), part(c_.q_dim()), part(c_.q_dim() + c_.kv_dim()),
                               memory_.data(), out.data(), s);
    s.synchronize();
    return out;
  }
  std::string bits() const { return memory_.bits(); }

 private:
  const Case& c_;
  DType dt_;
  double scale_;
  TestTensor memory_;
};

struct Reference {
  Doubles out, magnitude;  // magnitude: sum of p |v|
};

Reference reference(const Case& c, DType dt, const std::vector<Token>& tokens) {
  const auto row_of = [&](Token token) {
    TestTensor row(dt, c.stride());
    fill_row(c, dt, token, 1.0, static_cast<std::byte*>(row.data()));
    return row.doubles();
  };
  Reference r;
  const Doubles sinks = sinks_of(c, dt).doubles();
  for (const Token& token : tokens) {
    const Doubles q = row_of(token);
    std::vector<Doubles> rows;
    const auto window = static_cast<int32_t>(c.window);
    const int32_t first = window > 0 ? std::max(0, token.position + 1 - window) : 0;
    for (int32_t p = first; p <= token.position; ++p) rows.push_back(row_of({token.sequence, p}));
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t kv = h / (c.heads / c.kv_heads) * c.head_dim;
      Doubles p;
      double sum = sinks.empty() ? 0 : std::exp(sinks[h]);
      for (const Doubles& row : rows) {
        double score = 0;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          score += q[h * c.head_dim + d] * row[c.q_dim() + kv + d];
        }
        p.push_back(std::exp(score / std::sqrt(static_cast<double>(c.head_dim))));
        sum += p.back();
      }
      for (int64_t d = 0; d < c.head_dim; ++d) {
        double out = 0, magnitude = 0;
        for (size_t j = 0; j < rows.size(); ++j) {
          const double term = p[j] / sum * rows[j][c.q_dim() + c.kv_dim() + kv + d];
          out += term;
          magnitude += std::abs(term);
        }
        r.out.push_back(out);
        r.magnitude.push_back(magnitude);
      }
    }
  }
  return r;
}

const Case kCases[] = {{1, 1, 2, {1}},         {3, 1, 8, {5, 1, 17}},
                       {4, 2, 32, {70, 3}},    {6, 3, 10, {33}},
                       {2, 2, 128, {150, 20}}, {4, 2, 32, {70, 3}, 5, true},
                       {3, 1, 8, {20, 9}, 1},  {3, 1, 8, {20, 9}, 0, true}};

// Everything in one call, and token by token as in decoding. Scores carry an error of about
// sqrt(head_dim) eps times their size, which the exponential turns into a relative error of p; sums
// over keys add sqrt(keys) eps; bf16 rounds the output once.
TEST(CachedAttention, MatchesReference) {
  for (const Case& c : kCases) {
    const std::vector<Token> tokens = all_tokens(c);
    for (DType dt : kDTypes) {
      Cache cache(c, dt);
      const TestTensor out = cache.call(tokens, test_stream());
      const Reference want = reference(c, dt, tokens);
      const double terms = static_cast<double>(c.head_dim + c.capacity());
      const double relative = (dt == DType::kBF16 ? kEpsBf16 : 0.0) +
                              8 * kEps32 * (std::sqrt(terms) + 8);
      expect_close(c.name(dt), out.doubles(), want.out,
                   [&](size_t i) { return relative * want.magnitude[i] + 1e-30; });
    }
  }
}

// A token's bits do not depend on what else is new.
TEST(CachedAttention, AloneOrTogether) {
  for (const Case& c : kCases) {
    for (DType dt : kDTypes) {
      const std::vector<Token> tokens = all_tokens(c);
      Cache together(c, dt), alone(c, dt);
      const std::string want = together.call(tokens, test_stream()).bits();
      std::string got;
      for (const Token& token : tokens) got += alone.call({token}, test_stream()).bits();
      EXPECT_TRUE(got == want) << c.name(dt);
      EXPECT_TRUE(together.bits() == alone.bits()) << c.name(dt);
    }
  }
}

TEST(CachedAttention, ThreadsDoNotMatter) {
  const Case& c = kCases[2];
  for (DType dt : kDTypes) {
    expect_same_bits([&](Stream& s) {
      Cache cache(c, dt);
      return cache.call(all_tokens(c), s).bits() + cache.bits();
    });
  }
}

TEST(CachedAttention, LargeScoresStayFinite) {
  const Case& c = kCases[2];
  for (DType dt : kDTypes) {
    Cache cache(c, dt, 30.0);
    for (double x : cache.call(all_tokens(c), test_stream()).doubles()) {
      ASSERT_TRUE(std::isfinite(x)) << dtype_name(dt);
    }
  }
}

}  // namespace
}  // namespace pagoda
