#include "tests/testing/op_testing.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace pagoda {

TestTensor::TestTensor(DType dt, int64_t n, int64_t offset)
    : dt_(dt), n_(n), start_(kGuard + offset * dtype_bytes(dt)) {
  memory_.resize(static_cast<size_t>(start_ + n * dtype_bytes(dt) + kGuard + 64));
  base_ = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
  memory_.assign(memory_.size(), std::byte{0x5a});
}

TestTensor::~TestTensor() {
  if (memory_.empty()) return;
  for (int64_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(base_[start_ - 1 - i], std::byte{0x5a}) << "written before the tensor";
    EXPECT_EQ(base_[start_ + n_ * dtype_bytes(dt_) + i], std::byte{0x5a}) << "written past it";
  }
}

Doubles TestTensor::doubles() const {
  Doubles out(static_cast<size_t>(n_));
  for (int64_t i = 0; i < n_; ++i) out[static_cast<size_t>(i)] = get(i);
  return out;
}

TestTensor& TestTensor::fill(double v) {
  for (int64_t i = 0; i < n_; ++i) set(i, v);
  return *this;
}

TestTensor& TestTensor::randomise(uint64_t seed, double scale) {
  for (int64_t i = 0; i < n_; ++i) {
    set(i, scale * random_normal(seed, RandomPurpose::kTest, 0, static_cast<uint64_t>(i)));
  }
  return *this;
}

void expect_close(const std::string& what, const Doubles& got, const Doubles& want,
                  const std::function<double(size_t)>& tolerance) {
  ASSERT_EQ(got.size(), want.size()) << what;
  size_t worst = 0, outside = 0;
  double worst_ratio = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double ratio = std::abs(got[i] - want[i]) / tolerance(i);
    if (!(ratio <= 1.0)) ++outside;
    if (!(ratio <= worst_ratio)) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  EXPECT_EQ(outside, 0u) << what << ": worst element " << worst << " of " << got.size() << ": got "
                         << got[worst] << ", want " << want[worst] << ", "
                         << worst_ratio << " times the tolerance " << tolerance(worst);
}

Stream& test_stream() {
  static TestLane lane(2);
  return *lane.stream;
}

void expect_same_bits(const std::function<std::string(Stream&)>& run) {
  TestLane one(1);
  const std::string want = run(*one.stream);
  for (int threads = 2; threads <= 4; ++threads) {
    TestLane lane(threads);
    EXPECT_EQ(run(*lane.stream) == want, true) << threads << " threads differ from one";
  }
}

Doubles finite_differences(Doubles x, const std::function<double(const Doubles&)>& f,
                          double step) {
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double middle = x[i];
    x[i] = middle + step;
    const double above = f(x);
    x[i] = middle - step;
    const double below = f(x);
    x[i] = middle;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

double inner(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double root_mean_square(const Doubles& a) {
  return a.empty() ? 0.0 : std::sqrt(inner(a, a) / static_cast<double>(a.size()));
}

}  // namespace pagoda
