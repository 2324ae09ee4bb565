// AdamW against a double-precision reference and against the fp32 operations of PyTorch one by one;
// clipping and schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/schedule.h"
#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

constexpr int64_t kN = 70003;  // more than one parallel block, and a part of a piece

struct State {
  explicit State(DType weight_dtype, int64_t n = kN)
      : master(DType::kF32, n, 1), m(DType::kF32, n, 2), v(DType::kF32, n, 3),
        weight(weight_dtype, n, 1) {
    master.randomise(71);
    m.fill(0);
    v.fill(0);
    weight.fill(0);
  }
  std::string bits() const { return master.bits() + m.bits() + v.bits() + weight.bits(); }
  TestTensor master, m, v, weight;
};

TestTensor gradient(DType dt, int64_t t) {
  TestTensor g(dt, kN, 1);
  g.randomise(static_cast<uint64_t>(100 + t), 0.1);
  return g;
}

AdamStep step_number(int64_t t) {
  return {.lr = 1e-2 * schedule_factor(ScheduleKind::kLinear, t, 2, 12),
          .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .t = t};
}

void update(const AdamStep& step, const TestTensor* g, float scale, State& state,
            ThreadPool& pool) {
  EXPECT_TRUE(adam_update(step, g ? g->dtype() : DType::kF32, g ? g->data() : nullptr, scale,
                          state.master.size(), state.master.floats(), state.m.floats(),
                          state.v.floats(), state.weight.dtype(), state.weight.data(), pool));
}

// The operations of torch.optim.AdamW's single-tensor path, one fp32 rounding each.
void torch_step(const AdamStep& s, double grad, float& p, float& m, float& v) {
  const float g = static_cast<float>(grad);
  const double correction1 = 1 - std::pow(s.beta1, s.t), correction2 = 1 - std::pow(s.beta2, s.t);
  p = p * static_cast<float>(1 - s.lr * s.weight_decay);
  m = m + static_cast<float>(1 - s.beta1) * (g - m);
  v = v * static_cast<float>(s.beta2);
  v = v + static_cast<float>(1 - s.beta2) * g * g;
  const float root = std::sqrt(v) / static_cast<float>(std::sqrt(correction2));
  const float denominator = root + static_cast<float>(s.eps);
  p = p + static_cast<float>(-(s.lr / correction1)) * m / denominator;
}

TEST(Adam, IsPyTorchsOperationByOperation) {
  ThreadPool pool(2);
  for (DType dt : kDTypes) {
    State state(dt);
    std::vector<float> p(kN), m(kN, 0.0f), v(kN, 0.0f);
    for (int64_t i = 0; i < kN; ++i) p[i] = static_cast<float>(state.master.get(i));
    for (int64_t t = 1; t <= 10; ++t) {
      const TestTensor g = gradient(dt, t);
      const float clip = t % 2 ? 1.0f : 0.3f;
      update(step_number(t), &g, clip, state, pool);
      for (int64_t i = 0; i < kN; ++i) {
        torch_step(step_number(t), static_cast<float>(g.get(i)) * clip, p[i], m[i], v[i]);
      }
    }
    for (int64_t i = 0; i < kN; ++i) {
      ASSERT_EQ(state.master.floats()[i], p[i]) << "element " << i;
      ASSERT_EQ(state.m.floats()[i], m[i]) << "element " << i;
      ASSERT_EQ(state.v.floats()[i], v[i]) << "element " << i;
      const float want = dt == DType::kF32 ? p[i] : to_float(bf16_round_weight(p[i]));
      ASSERT_EQ(state.weight.get(i), want) << "element " << i;
    }
  }
}

// The textbook formulas in double; ten steps of fp32 stay within a few roundings of every quantity.
TEST(Adam, MatchesDouble) {
  ThreadPool pool(2);
  State state(DType::kF32);
  Doubles p = state.master.doubles(), m(kN), v(kN);
  for (int64_t t = 1; t <= 10; ++t) {
    const TestTensor g = gradient(DType::kF32, t);
    const AdamStep s = step_number(t);
    update(s, &g, 1.0f, state, pool);
    for (int64_t i = 0; i < kN; ++i) {
      m[i] = s.beta1 * m[i] + (1 - s.beta1) * g.get(i);
      v[i] = s.beta2 * v[i] + (1 - s.beta2) * g.get(i) * g.get(i);
      const double mean = m[i] / (1 - std::pow(s.beta1, t));
      const double root = std::sqrt(v[i] / (1 - std::pow(s.beta2, t)));
      p[i] = p[i] * (1 - s.lr * s.weight_decay) - s.lr * mean / (root + s.eps);
    }
  }
  // Ten steps, each rounding p twice and moving it by at most ~lr with a handful of roundings.
  expect_close("master", state.master.doubles(), p,
               [&](size_t i) { return 10 * kEps32 * (2 * std::abs(p[i]) + 20 * 1e-2); });
  expect_close("m", state.m.doubles(), m, [](size_t) { return 10 * 4 * kEps32 * 0.5; });
  expect_close("v", state.v.doubles(), v,
               [&](size_t i) { return 10 * 4 * kEps32 * v[i] + 1e-30; });
}

TEST(Adam, NoGradientIsAGradientOfZeros) {
  ThreadPool pool(2);
  for (DType dt : kDTypes) {
    State replayed(dt), given(dt);
    TestTensor zero(dt, kN);
    zero.fill(0);
    for (State* state : {&replayed, &given}) {
      const TestTensor g = gradient(dt, 1);
      update(step_number(1), &g, 1.0f, *state, pool);
    }
    const std::string before = given.master.bits();
    for (int64_t t = 2; t <= 5; ++t) {
      update(step_number(t), nullptr, 1.0f, replayed, pool);
      update(step_number(t), &zero, 0.37f, given, pool);
    }
    EXPECT_EQ(replayed.bits() == given.bits(), true) << dtype_name(dt);
    EXPECT_EQ(given.master.bits() == before, false) << "moments still move the weights";
  }
}

TEST(Adam, ThreadsAndSplitsDoNotMatter) {
  for (DType dt : kDTypes) {
    const TestTensor g = gradient(dt, 1);
    std::string want;
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      State state(dt);
      update(step_number(1), &g, 0.5f, state, pool);
      if (threads == 1) want = state.bits();
      EXPECT_EQ(state.bits() == want, true) << threads << " threads";
    }
    ThreadPool pool(2);
    State parts(dt);
    for (int64_t begin = 0; begin < kN;) {
      const int64_t n = std::min<int64_t>(kN - begin, 12345);
      const auto at = [&](const TestTensor& t) {
        return const_cast<std::byte*>(static_cast<const std::byte*>(t.data())) +
               begin * dtype_bytes(t.dtype());
      };
      EXPECT_TRUE(adam_update(step_number(1), dt, at(g), 0.5f, n, parts.master.floats() + begin,
                              parts.m.floats() + begin, parts.v.floats() + begin, dt,
                              at(parts.weight), pool));
      begin += n;
    }
    EXPECT_EQ(parts.bits() == want, true) << "in parts";
  }
}

TEST(Adam, NothingToDo) {
  ThreadPool pool(2);
  EXPECT_TRUE(adam_update(step_number(1), DType::kF32, nullptr, 1.0f, 0, nullptr, nullptr, nullptr,
                          DType::kBF16, nullptr, pool));
}

// Wherever it is, and also the fp32 values that bf16 rounds to infinity.
TEST(Adam, SaysWhenAWeightIsNotFinite) {
  ThreadPool pool(2);
  const float largest_bf16 = std::bit_cast<float>(0x7f7f0000u);
  const float rounds_down = std::bit_cast<float>(0x7f7f7fffu);
  const float rounds_up = std::bit_cast<float>(0x7f7f8000u);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t at : {int64_t{0}, int64_t{1023}, int64_t{70000}, kN - 1}) {
    for (const float value : {largest_bf16, -rounds_down, rounds_up, -infinity, NAN}) {
      State state(DType::kBF16);
      std::fill_n(state.master.floats(), kN, 1.0f);
      state.master.floats()[at] = value;
      AdamStep step = step_number(1);
      step.lr = step.weight_decay = 0;
      const bool finite = adam_update(step, DType::kF32, nullptr, 1.0f, kN, state.master.floats(),
                                      state.m.floats(), state.v.floats(), DType::kBF16,
                                      state.weight.data(), pool);
      EXPECT_EQ(finite, std::abs(value) < rounds_up) << value << " at " << at;
    }
  }
}

TEST(Clip, AsClipGradNorm) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0f);
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0f);
  EXPECT_FLOAT_EQ(clip_factor(4.0, 1.0), static_cast<float>(1.0 / 4.000001));
  EXPECT_LT(clip_factor(1.0, 1.0), 1.0f);  // the 1e-6
}

// Values computed by hand from the formulas of the Transformers functions.
TEST(Schedule, AsTransformers) {
  const auto at = [](ScheduleKind kind, int64_t step) {
    return schedule_factor(kind, step, 4, 12);
  };
  for (auto kind : {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    EXPECT_DOUBLE_EQ(at(kind, 0), 0.0);
    EXPECT_DOUBLE_EQ(at(kind, 1), 0.25);
    EXPECT_DOUBLE_EQ(at(kind, 4), 1.0);
  }
  EXPECT_DOUBLE_EQ(at(ScheduleKind::kConstant, 100), 1.0);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::kLinear, 6), 0.75);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::kLinear, 12), 0.0);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::kLinear, 13), 0.0);
  EXPECT_NEAR(at(ScheduleKind::kCosine, 6), 0.5 * (1 + std::sqrt(0.5)), 1e-15);
  EXPECT_NEAR(at(ScheduleKind::kCosine, 8), 0.5, 1e-15);
  EXPECT_NEAR(at(ScheduleKind::kCosine, 12), 0.0, 1e-15);
  EXPECT_NEAR(at(ScheduleKind::kCosine, 20), 0.0, 1e-15);
  EXPECT_DOUBLE_EQ(schedule_factor(ScheduleKind::kLinear, 0, 0, 10), 1.0);
}

}  // namespace
}  // namespace pagoda
