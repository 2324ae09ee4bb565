// AdamW against a double-precision reference and against the fp32 operations of PyTorch one by one;
// clipping and schedules.
#include "optim/adam.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "optim/clip.h"
#include "optim/masters.h"
#include "optim/schedule.h"
#include "tests/testing/op_testing.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/stored_moments.h"

namespace pagoda {
namespace {

using testing::Moment;
using testing::StoredMoments;

constexpr int64_t kN = 70003;  // more than a share of each thread, and a part of a block

constexpr std::pair<DType, StateFormat> kKinds[] = {
    {DType::kF32, StateFormat::kFp32}, {DType::kBF16, StateFormat::kFp32},
    {DType::kF32, StateFormat::kBf16}, {DType::kBF16, StateFormat::kBf16},
    {DType::kF32, StateFormat::k8Bit}, {DType::kBF16, StateFormat::k8Bit}};

// One record that decays, stored as training stores it.
struct State {
  explicit State(DType weight_dtype, StateFormat format = StateFormat::kFp32, int64_t n = kN)
      : layout(format, weight_dtype, n), weights(weight_dtype, n),
        page(DType::kF32, div_ceil(layout.bytes, 4)), span{0, n, true} {
    TestTensor masters(DType::kF32, n);
    masters.randomise(71);
    begin(masters);
  }
  void begin(TestTensor& masters) {
    begin_state(layout, masters.floats(), weights.data(), page.data());
  }
  std::byte* bytes() { return static_cast<std::byte*>(page.data()); }
  AdamRecord record() { return {layout, {&span, 1}, weights.data(), bytes()}; }
  std::vector<float> masters() {
    std::vector<float> values(static_cast<size_t>(layout.num_elements));
    read_masters(layout, weights.data(), bytes(), 0, layout.num_elements, values.data());
    return values;
  }
  const float* m() { return reinterpret_cast<const float*>(bytes() + layout.m_at); }
  const float* v() { return reinterpret_cast<const float*>(bytes() + layout.v_at); }
  testing::StoredMoments moments() { return testing::StoredMoments(layout, bytes()); }
  bool same_moments(State& other) {
    for (const Moment moment : {Moment::kFirst, Moment::kSecond}) {
      for (int64_t i = 0; i < layout.num_elements; ++i) {
        if (moments().get(moment, i) != other.moments().get(moment, i)) return false;
      }
    }
    return true;
  }
  void set_masters(const std::vector<float>& masters) {
    if (layout.weight_dtype == DType::kF32) {
      std::copy(masters.begin(), masters.end(), static_cast<float*>(weights.data()));
    } else {
      split_masters(masters.data(), layout.num_elements, static_cast<bf16*>(weights.data()),
                    reinterpret_cast<int16_t*>(bytes() + layout.remainders_at));
    }
  }
  std::string bits() const { return weights.bits() + page.bits(); }

  StateLayout layout;
  TestTensor weights, page;
  AdamSpan span;
};

Doubles doubles(const float* values, int64_t n) { return Doubles(values, values + n); }

TestTensor gradient(DType dt, int64_t t) {
  TestTensor g(dt, kN, 1);
  g.randomise(static_cast<uint64_t>(100 + t), 0.1);
  return g;
}

AdamStep step_number(int64_t t) {
  return {.lr = 1e-2 * schedule_factor(ScheduleKind::kLinear, t, 2, 12),
          .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .t = t,
          .noise_key = static_cast<uint32_t>(t) * 77};
}

void update(const AdamStep& step, const TestTensor* g, float scale, State& state,
            ThreadPool& pool) {
  EXPECT_TRUE(adam_update(step, state.record(), g ? g->data() : nullptr, scale, pool));
}

// The operations of torch.optim.AdamW's single-tensor path, one fp32 rounding each.
void torch_step(const AdamStep& s, double grad, float& p, float& m, float& v) {
  const float g = static_cast<float>(grad);
  const double correction1 = 1 - std::pow(s.beta1, s.t), correction2 = 1 - std::pow(s.beta2, s.t);
  p = p * static_cast<float>(1 - s.lr * s.weight_decay);
  const float lerp = static_cast<float>(1 - s.beta1);
  m = lerp < 0.5f ? m + lerp * (g - m) : g - (g - m) * (1 - lerp);
  v = v * static_cast<float>(s.beta2);
  v = v + static_cast<float>(1 - s.beta2) * g * g;
  const float root = std::sqrt(v) / static_cast<float>(std::sqrt(correction2));
  const float denominator = root + static_cast<float>(s.eps);
  p = p + static_cast<float>(-(s.lr / correction1)) * m / denominator;
}

// An update of a record that decays, one element at a time.
void slow_update(const AdamStep& step, const TestTensor& grad, float scale, State& state) {
  std::vector<float> masters = state.masters(), m(kMomentBlock), v(kMomentBlock);
  StoredMoments moments = state.moments();
  for (int64_t first = 0; first < kN; first += kMomentBlock) {
    const int64_t n = std::min(kMomentBlock, kN - first);
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = first + k;
      m[k] = moments.get(Moment::kFirst, i);
      v[k] = moments.get(Moment::kSecond, i);
      torch_step(step, static_cast<float>(grad.get(i)) * scale, masters[i], m[k], v[k]);
    }
    moments.set(Moment::kFirst, first, n, step.noise_key, m.data());
    moments.set(Moment::kSecond, first, n, step.noise_key, v.data());
  }
  state.set_masters(masters);
}

TEST(Adam, IsPyTorchsOperationByOperation) {
  ThreadPool pool(2);
  for (DType dt : kDTypes) {
    State state(dt);
    std::vector<float> p(kN), m(kN, 0.0f), v(kN, 0.0f);
    p = state.masters();
    for (int64_t t = 1; t <= 10; ++t) {
      const TestTensor g = gradient(dt, t);
      const float clip = t % 2 ? 1.0f : 0.3f;
      update(step_number(t), &g, clip, state, pool);
      for (int64_t i = 0; i < kN; ++i) {
        torch_step(step_number(t), static_cast<float>(g.get(i)) * clip, p[i], m[i], v[i]);
      }
    }
    const std::vector<float> masters = state.masters();
    for (int64_t i = 0; i < kN; ++i) {
      ASSERT_EQ(masters[i], p[i]) << "element " << i;
      ASSERT_EQ(state.m()[i], m[i]) << "element " << i;
      ASSERT_EQ(state.v()[i], v[i]) << "element " << i;
      const float want = dt == DType::kF32 ? p[i] : to_float(bf16_round_weight(p[i]));
      ASSERT_EQ(state.weights.get(i), want) << "element " << i;
    }
  }
}

// The textbook formulas in double; ten steps of fp32 stay within a few roundings of every quantity.
TEST(Adam, MatchesDouble) {
  ThreadPool pool(2);
  State state(DType::kF32);
  Doubles p = doubles(state.masters().data(), kN), m(kN), v(kN);
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
  expect_close("master", doubles(state.masters().data(), kN), p,
               [&](size_t i) { return 10 * kEps32 * (2 * std::abs(p[i]) + 20 * 1e-2); });
  expect_close("m", doubles(state.m(), kN), m, [](size_t) { return 10 * 4 * kEps32 * 0.5; });
  expect_close("v", doubles(state.v(), kN), v,
               [&](size_t i) { return 10 * 4 * kEps32 * v[i] + 1e-30; });
}

TEST(Adam, NoGradientIsAGradientOfZeros) {
  ThreadPool pool(2);
  for (const auto& [dt, format] : kKinds) {
    State replayed(dt, format), given(dt, format);
    TestTensor zero(dt, kN);
    zero.fill(0);
    for (State* state : {&replayed, &given}) {
      const TestTensor g = gradient(dt, 1);
      update(step_number(1), &g, 1.0f, *state, pool);
    }
    const std::vector<float> before = given.masters();
    for (int64_t t = 2; t <= 5; ++t) {
      update(step_number(t), nullptr, 1.0f, replayed, pool);
      update(step_number(t), &zero, 0.37f, given, pool);
    }
    EXPECT_EQ(replayed.bits() == given.bits(), true) << dtype_name(dt);
    EXPECT_EQ(given.masters() == before, false) << "moments still move the weights";
  }
}

TEST(Adam, ThreadsDoNotMatter) {
  for (const auto& [dt, format] : kKinds) {
    std::string want;
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      State state(dt, format);
      for (int64_t t = 1; t <= 2; ++t) {
        const TestTensor g = gradient(dt, t);
        update(step_number(t), &g, 0.5f, state, pool);
      }
      if (threads == 1) want = state.bits();
      EXPECT_EQ(state.bits() == want, true) << threads << " threads";
    }
  }
}

// Every format by the loop of every ISA that this processor has, and element by element.
TEST(Adam, IsaDoesNotMatter) {
  ThreadPool pool(2);
  for (const auto& [dt, format] : kKinds) {
    for (const double beta1 : {0.9, 0.3}) {  // torch.lerp computes from either end
      State reference(dt, format);
      for (int64_t t = 1; t <= 3; ++t) {
        AdamStep step = step_number(t);
        step.beta1 = beta1;
        slow_update(step, gradient(dt, t), 0.3f, reference);
      }
      for (const AdamKernel& kernel : adam_kernels()) {
        State state(dt, format);
        for (int64_t t = 1; t <= 3; ++t) {
          AdamStep step = step_number(t);
          step.beta1 = beta1;
          const TestTensor g = gradient(dt, t);
          ASSERT_TRUE(adam_update(step, state.record(), g.data(), 0.3f, pool, kernel));
        }
        EXPECT_EQ(state.masters() == reference.masters(), true)
            << kernel.isa << ' ' << dtype_name(dt) << ' ' << state_format_name(format);
        EXPECT_EQ(state.same_moments(reference), true)
            << kernel.isa << ' ' << dtype_name(dt) << ' ' << state_format_name(format);
      }
    }
  }
  std::printf("ISAs:");
  for (const AdamKernel& kernel : adam_kernels()) std::printf(" %s", kernel.isa);
  std::printf("\n");
}

// Loops that multiply with a reciprocal and correct (lanes.h) round as a division does: from zero,
// a weight becomes a quotient whose last bit shows that of the root's.
TEST(Adam, DividesExactlyOnEveryIsa) {
  constexpr int64_t kCount = 1 << 16;
  ThreadPool pool(2);
  TestTensor g(DType::kF32, kCount), zero(DType::kF32, kCount);
  g.randomise(11, 0.1);
  zero.fill(0);
  for (const int64_t t : {1, 2, 3, 4, 7, 20, 100, 333, 1000, 5000, 100000}) {
    const AdamStep step = {.lr = 1, .eps = 1e-30, .t = t};
    for (const AdamKernel& kernel : adam_kernels()) {
      State state(DType::kF32, StateFormat::kFp32, kCount);
      state.begin(zero);
      ASSERT_TRUE(adam_update(step, state.record(), g.data(), 1.0f, pool, kernel));
      for (int64_t i = 0; i < kCount; ++i) {
        float p = 0, m = 0, v = 0;
        torch_step(step, g.get(i), p, m, v);
        ASSERT_EQ(state.weights.get(i), p) << kernel.isa << ", t " << t << ", element " << i;
      }
    }
  }
}

// A record whose middle does not decay is updated like three records, the middle one without decay.
TEST(Adam, SpansDecayAsTheySay) {
  ThreadPool pool(2);
  const AdamSpan spans[] = {{0, 1000, true}, {1000, 3333, false}, {3333, kN, true}};
  for (DType dt : kDTypes) {
    State whole(dt), decayed(dt), kept(dt);
    const TestTensor g = gradient(dt, 1);
    const AdamStep step = step_number(1);
    AdamStep no_decay = step;
    no_decay.weight_decay = 0;
    AdamRecord record = whole.record();
    record.spans = spans;
    EXPECT_TRUE(adam_update(step, record, g.data(), 1.0f, pool));
    update(step, &g, 1.0f, decayed, pool);
    update(no_decay, &g, 1.0f, kept, pool);
    const std::vector<float> of_whole = whole.masters(), of_decayed = decayed.masters(),
                             of_kept = kept.masters();
    for (int64_t i = 0; i < kN; ++i) {
      const bool middle = i >= 1000 && i < 3333;
      ASSERT_EQ(of_whole[i], (middle ? of_kept : of_decayed)[i]) << "element " << i;
    }
  }
}

TEST(Adam, NothingToDo) {
  ThreadPool pool(2);
  EXPECT_TRUE(adam_update(step_number(1), {}, nullptr, 1.0f, pool));
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
      State state(DType::kF32);
      TestTensor masters(DType::kF32, kN);
      masters.fill(1);
      masters.floats()[at] = value;
      state.begin(masters);
      AdamStep step = step_number(1);
      step.lr = step.weight_decay = 0;
      const bool finite = adam_update(step, state.record(), nullptr, 1.0f, pool);
      EXPECT_EQ(finite, std::abs(value) < rounds_up) << value << " at " << at;
    }
  }
}

// On every ISA and in every format: what the moments keep of it need then not agree.
TEST(Adam, FailsOnAGradientThatIsNotFinite) {
  ThreadPool pool(2);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const AdamKernel& kernel : adam_kernels()) {
    for (const auto& [dt, format] : kKinds) {
      const std::vector<float> values = {infinity, -infinity, float{NAN}, -float{NAN}};
      const std::vector<int64_t> places = {0, 255, 70000, kN - 1};
      for (size_t v = 0; v < values.size(); ++v) {
        for (size_t p = 0; p < places.size(); ++p) {
          if (kUnderSanitizer && p != v) continue;  // each value and each place once
          const float value = values[v];
          const int64_t at = places[p];
          State state(dt, format);
          TestTensor g = gradient(dt, 1);
          g.set(at, value);
          EXPECT_FALSE(adam_update(step_number(1), state.record(), g.data(), 1.0f, pool, kernel))
              << kernel.isa << ", " << state_format_name(format) << ": " << value << " at " << at;
        }
      }
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
