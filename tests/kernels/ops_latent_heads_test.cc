// Heads of latent attention against a double-precision reference, their gradients against what that
// makes of each number of its input (it is linear), and copied columns.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

const std::vector<int32_t> kPositions = {0, 1, 2, 700, 0, 5};

struct Case {
  int64_t heads, plain, rotated, value;
  bool neighbours;
  float query_scale;

  LatentShape shape() const {
    return {std::ssize(kPositions), heads, plain, rotated, value, neighbours, query_scale,
            heads * (plain + rotated) + 3, rotated + 2};
  }
  std::string name(DType dt) const {
    return strf("%s, %lld heads of %lld + %lld, values of %lld", dtype_name(dt), (long long)heads,
                (long long)plain, (long long)rotated, (long long)value);
  }
};

// Values shorter than keys, longer, and as long.
const Case kCases[] = {
    {2, 5, 4, 3, true, 0.75f}, {3, 2, 2, 9, false, 1.0f}, {1, 4, 6, 10, true, 1.5f}};

const Rotation kRotation{1e4, 4.0, 64.0, 8.0, 0.5, false, false, 1.25};

// All numbers of q, shared and kv behind one another, as tensors without gaps.
struct Inputs {
  Doubles q, shared, kv;
};

Doubles reference(const Case& c, const Inputs& in) {
  const int64_t key = c.plain + c.rotated, width = c.plain + c.value;
  const int64_t dim = std::max(key, c.value), half = c.rotated / 2;
  const std::vector<double> frequency = rope_frequencies(kRotation, c.rotated);
  Doubles out;
  for (size_t t = 0; t < kPositions.size(); ++t) {
    // Number j of a rotated vector x.
    const auto turned = [&](const double* x, int64_t j) {
      const int64_t pair = c.neighbours ? j / 2 : j % half;
      const bool second = c.neighbours ? j % 2 == 1 : j >= half;
      const int64_t other = c.neighbours ? j ^ 1 : (second ? j - half : j + half);
      const double angle = kPositions[t] * frequency[static_cast<size_t>(pair)];
      return 1.25 * (x[j] * std::cos(angle) + (second ? 1 : -1) * x[other] * std::sin(angle));
    };
    for (int part = 0; part < 3; ++part) {
      for (int64_t h = 0; h < c.heads; ++h) {
        const auto at = static_cast<int64_t>(t);
        const double* q = in.q.data() + (at * c.heads + h) * key;
        const double* kv = in.kv.data() + (at * c.heads + h) * width;
        const double* shared = in.shared.data() + at * c.rotated;
        for (int64_t i = 0; i < dim; ++i) {
          double v = 0;
          if (part == 2) {
            v = i < c.value ? kv[c.plain + i] : 0;
          } else if (i < c.plain) {
            v = part == 0 ? c.query_scale * q[i] : kv[i];
          } else if (i < key) {
            v = part == 0 ? c.query_scale * turned(q + c.plain, i - c.plain)
                          : turned(shared, i - c.plain);
          }
          out.push_back(v);
        }
      }
    }
  }
  return out;
}

// Rows of `width` numbers without what lies between them.
Doubles packed(const TestTensor& x, int64_t width, int64_t stride) {
  Doubles out;
  for (int64_t i = 0; i < x.size(); ++i) {
    if (i % stride < width) out.push_back(x.get(i));
  }
  return out;
}

struct Tensors {
  Tensors(const Case& c, DType dt)
      : shape(c.shape()), q(dt, shape.tokens * shape.q_stride, 1),
        shared(dt, shape.tokens * shape.shared_stride, 2),
        kv(dt, shape.tokens * c.heads * (c.plain + c.value), 3),
        qkv(dt, shape.tokens * 3 * c.heads * shape.head_dim(), 4) {}
  Inputs inputs(const Case& c) const {
    return {packed(q, c.heads * (c.plain + c.rotated), shape.q_stride),
            packed(shared, c.rotated, shape.shared_stride), kv.doubles()};
  }
  LatentShape shape;
  TestTensor q, shared, kv, qkv;
};

double allowed(DType dt, double want) {
  return 1.01 * rounding_of(dt) * std::abs(want) + 40 * kEps32;
}

TEST(LatentHeads, MatchReference) {
  for (const Case& c : kCases) {
    for (DType dt : kDTypes) {
      Tensors x(c, dt);
      x.q.randomise(11);
      x.shared.randomise(12);
      x.kv.randomise(13);
      x.qkv.fill(99.0);
      cpu_ops().latent_heads(dt, x.shape, kPositions.data(), kRotation, x.q.data(),
                             x.shared.data(), x.kv.data(), x.qkv.data(), test_stream());
      test_stream().synchronize();
      const Doubles want = reference(c, x.inputs(c));
      expect_close(c.name(dt), x.qkv.doubles(), want,
                   [&](size_t i) { return allowed(dt, want[i]); });
    }
  }
}

// The gradient of a number is what the reference makes of it alone, times the output's.
Doubles gradient_of(const Case& c, Inputs zeros, Doubles Inputs::* part, const Doubles& dqkv) {
  Doubles gradient;
  for (double& number : zeros.*part) {
    number = 1;
    gradient.push_back(inner(reference(c, zeros), dqkv));
    number = 0;
  }
  return gradient;
}

TEST(LatentHeads, GradientsAreThoseOfALinearFunction) {
  for (const Case& c : kCases) {
    for (DType dt : kDTypes) {
      Tensors x(c, dt);
      x.qkv.randomise(14);
      for (TestTensor* gradient : {&x.q, &x.shared, &x.kv}) gradient->fill(7.0);
      cpu_ops().latent_heads_backward(dt, x.shape, kPositions.data(), kRotation, x.qkv.data(),
                                      x.q.data(), x.shared.data(), x.kv.data(), test_stream());
      test_stream().synchronize();
      const Inputs got = x.inputs(c);
      Inputs zeros = got;
      for (Doubles* part : {&zeros.q, &zeros.shared, &zeros.kv}) part->assign(part->size(), 0);
      const Doubles dqkv = x.qkv.doubles();
      for (Doubles Inputs::* part : {&Inputs::q, &Inputs::shared, &Inputs::kv}) {
        const Doubles want = gradient_of(c, zeros, part, dqkv);
        expect_close(c.name(dt), got.*part, want, [&](size_t i) { return allowed(dt, want[i]); });
      }
      const int64_t width = c.heads * (c.plain + c.rotated);
      for (int64_t i = 0; i < x.q.size(); ++i) {
        if (i % x.shape.q_stride < width) continue;
        ASSERT_EQ(x.q.get(i), 7.0) << "between rows";
      }
    }
  }
}

TEST(LatentHeads, SameBitsOnAnyNumberOfThreads) {
  const Case& c = kCases[0];
  expect_same_bits([&](Stream& s) {
    Tensors x(c, DType::kBF16);
    x.q.randomise(11);
    x.shared.randomise(12);
    x.kv.randomise(13);
    cpu_ops().latent_heads(DType::kBF16, x.shape, kPositions.data(), kRotation, x.q.data(),
                           x.shared.data(), x.kv.data(), x.qkv.data(), s);
    s.synchronize();
    return x.qkv.bits();
  });
}

TEST(CopiedColumns, LeaveTheRestOfTheRow) {
  for (DType dt : kDTypes) {
    TestTensor x(dt, 3 * 5, 1), out(dt, 3 * 7, 2);
    for (int64_t i = 0; i < 15; ++i) x.set(i, static_cast<double>(i));
    out.fill(9.0);
    cpu_ops().copy_columns(dt, x.data(), 3, 2, 5, 3, 7, out.data(), test_stream());
    test_stream().synchronize();
    EXPECT_EQ(out.doubles(), (Doubles{0, 1, 0, 0, 0, 9, 9, 5, 6, 0, 0, 0, 9, 9,
                                      10, 11, 0, 0, 0, 9, 9}));
  }
}

}  // namespace
}  // namespace pagoda
