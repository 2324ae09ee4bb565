// SwiGLU and the gate of a shared expert against double references, gradients against finite
// differences of those.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

Ops& ops() { return cpu_ops(); }

// ---- SwiGLU ----

double silu(double g) { return g / (1.0 + std::exp(-g)); }

Doubles swiglu_reference(const SwigluShape& shape, const Doubles& gate_up, int64_t n, int64_t f) {
  Doubles out(n * f);
  const double slope = shape.slope, limit = shape.limit, offset = shape.offset;
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t j = 0; j < f; ++j) {
      const double gate = std::min(gate_up[t * 2 * f + j], limit);
      const double up = std::clamp(gate_up[t * 2 * f + f + j], -limit, limit);
      out[t * f + j] = silu(slope * gate) / slope * (up + offset);
    }
  }
  return out;
}

// What gpt-oss has, but for a limit that cuts some of the numbers, which are of scale 3.
constexpr SwigluShape kChanged{1.702f, 2.5f, 1.0f};

struct SwigluRun {
  TestTensor gate_up, act, dact, scale, dgate_up, scaled_act, dscale;
};

SwigluRun run_swiglu(DType dt, const SwigluShape& shape, int64_t n, int64_t f, bool scaled,
                     Stream& s) {
  SwigluRun r{TestTensor(dt, n * 2 * f),  TestTensor(dt, n * f),     TestTensor(dt, n * f),
              TestTensor(DType::kF32, n), TestTensor(dt, n * 2 * f), TestTensor(dt, n * f),
              TestTensor(DType::kF32, n)};
  r.gate_up.randomise(6, 3.0);
  r.dact.randomise(7);
  r.scale.randomise(8);
  r.dscale.fill(9);
  ops().swiglu(dt, shape, r.gate_up.data(), n, f, r.act.data(), s);
  ops().swiglu_backward(dt, shape, r.gate_up.data(), r.dact.data(),
                        scaled ? r.scale.floats() : nullptr, n, f, r.dgate_up.data(),
                        r.scaled_act.data(), r.dscale.floats(), s);
  s.synchronize();
  return r;
}

void check_swiglu(DType dt, const SwigluShape& shape, int64_t n, int64_t f, bool scaled) {
  const SwigluRun r = run_swiglu(dt, shape, n, f, scaled, test_stream());
  const double u = rounding_of(dt);
  const Doubles gate_up = r.gate_up.doubles(), dact = r.dact.doubles();
  const Doubles act = swiglu_reference(shape, gate_up, n, f);
  Doubles scaled_act(act), weight(dact), dscale(n, 9.0), size(n, 0.0);
  for (int64_t t = 0; t < n; ++t) {
    const double scale = scaled ? r.scale.get(t) : 1.0;
    if (scaled) dscale[t] = 0.0;
    for (int64_t j = 0; j < f; ++j) {
      const int64_t i = t * f + j;
      weight[i] = dact[i] * scale;
      scaled_act[i] = act[i] * scale;
      if (scaled) dscale[t] += dact[i] * act[i];
      size[t] += std::abs(dact[i] * act[i]);
    }
  }
  // A few fp32 operations and an exponential (3e-7), then one or two roundings.
  const double op = 1e-6;
  const auto relative = [&](const Doubles& want, double roundings) {
    return [&want, bound = roundings * u * 1.01 + op](size_t i) {
      return bound * std::abs(want[i]) + 1e-30;
    };
  };
  expect_close("act", r.act.doubles(), act, relative(act, 1));
  expect_close("scaled act", r.scaled_act.doubles(), scaled_act, relative(scaled_act, 2));
  expect_close("dscale", r.dscale.doubles(), dscale,
               [&](size_t t) { return (u + op) * size[t] + 1e-30; });
  const Doubles want = finite_differences(
      gate_up, [&](const Doubles& x) { return inner(swiglu_reference(shape, x, n, f), weight); });
  expect_close("dgate_up", r.dgate_up.doubles(), want, [&](size_t i) {
    const double scale = std::abs(gate_up[i]) + 12;  // |g|, |u| reach 4 standard deviations
    return u * 1.01 * std::abs(want[i]) + op * scale * 4 + 1e-8 * scale;
  });
}

TEST(Swiglu, MatchesReference) {
  for (DType dt : kDTypes) {
    for (bool scaled : {false, true}) {
      for (const SwigluShape& shape : {SwigluShape(), kChanged}) {
        check_swiglu(dt, shape, 1, 1, scaled);
        check_swiglu(dt, shape, 5, 19, scaled);
        check_swiglu(dt, shape, 3, 32, scaled);
      }
    }
  }
}

TEST(Swiglu, ThreadsAndAliasingDoNotMatter) {
  constexpr int64_t kN = 300, kF = 200;
  for (DType dt : kDTypes) {
    for (const SwigluShape& shape : {SwigluShape(), kChanged}) {
      expect_same_bits([&](Stream& s) {
        SwigluRun r = run_swiglu(dt, shape, kN, kF, true, s);
        const std::string apart = r.dgate_up.bits();
        ops().swiglu_backward(dt, shape, r.gate_up.data(), r.dact.data(), r.scale.floats(), kN, kF,
                              r.gate_up.data(), r.scaled_act.data(), r.dscale.floats(), s);
        s.synchronize();
        EXPECT_EQ(r.gate_up.bits() == apart, true) << "in place differs";
        return r.act.bits() + apart + r.scaled_act.bits() + r.dscale.bits();
      });
    }
  }
}

// ---- gate of a shared expert ----

double sigmoid_reference(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The error: exp is within 3e-7 (vector.h), which sigmoid passes on at most in full; an addition
// and a division add theirs; products multiply numbers that each carry a rounding.
TEST(Sigmoid, MatchesDouble) {
  for (int64_t n : {1, 15, 16, 17, 300}) {
    TestTensor x(DType::kF32, n, 1), y(DType::kF32, n), dy(DType::kF32, n);
    x.randomise(16, 4.0);
    x.set(0, -100);  // below the range of exp: its answer is the largest float, so this one is 0
    dy.randomise(17);
    ops().sigmoid(x.floats(), n, y.floats(), test_stream());
    test_stream().synchronize();
    Doubles want = x.doubles();
    for (double& v : want) v = sigmoid_reference(v);
    expect_close("sigmoid", y.doubles(), want, [&](size_t i) { return 5e-7 * want[i] + 1e-37; });
    for (DType dt : kDTypes) {
      TestTensor dx(dt, n);
      ops().sigmoid_backward(dt, y.floats(), dy.floats(), n, dx.data(), test_stream());
      test_stream().synchronize();
      const Doubles weight = dy.doubles();
      const Doubles slope = finite_differences(x.doubles(), [&](const Doubles& input) {
        double sum = 0.0;
        for (size_t i = 0; i < input.size(); ++i) sum += weight[i] * sigmoid_reference(input[i]);
        return sum;
      });
      // 1 - y loses what y's own error is relative to it; central differences are off by 1e-10.
      expect_close(strf("sigmoid_backward %s", dtype_name(dt)), dx.doubles(), slope, [&](size_t i) {
        return 1.01 * rounding_of(dt) * std::abs(slope[i]) + 2e-6 * std::abs(weight[i]) + 1e-9;
      });
      TestTensor in_place(DType::kF32, n, 1);
      for (int64_t i = 0; i < n; ++i) in_place.set(i, x.get(i));
      ops().sigmoid(in_place.floats(), n, in_place.floats(), test_stream());
      test_stream().synchronize();
      EXPECT_TRUE(in_place.bits() == y.bits());
    }
  }
}

}  // namespace
}  // namespace pagoda
