// What the tests of kernels share: random tensors with guards, comparison against double-precision
// references with the worst element printed, and runs on several thread counts.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "device/device.h"
#include "kernels/ops.h"

namespace pagoda {

// Largest relative error of one rounding: 24 and 8 significant bits.
inline constexpr double kEps32 = 5.9604644775390625e-8;  // 2^-24
inline constexpr double kEpsBf16 = 1.0 / 256;            // 2^-8
inline double rounding_of(DType dt) { return dt == DType::kF32 ? kEps32 : kEpsBf16; }

using Doubles = std::vector<double>;

// n elements of dt, `offset` elements past a 64-byte boundary, between guards that must survive.
class TestTensor {
 public:
  TestTensor(DType dt, int64_t n, int64_t offset = 0)
      : dt_(dt), n_(n), start_(kGuard + offset * dtype_bytes(dt)) {
    memory_.resize(static_cast<size_t>(start_ + n * dtype_bytes(dt) + kGuard + 64));
    base_ = reinterpret_cast<std::byte*>(
        (reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
    memory_.assign(memory_.size(), std::byte{0x5a});
  }
  TestTensor(const TestTensor&) = delete;  // base_ points into memory_
  TestTensor(TestTensor&&) = default;
  ~TestTensor() {
    if (memory_.empty()) return;
    for (int64_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(base_[start_ - 1 - i], std::byte{0x5a}) << "written before the tensor";
      EXPECT_EQ(base_[start_ + n_ * dtype_bytes(dt_) + i], std::byte{0x5a}) << "written past it";
    }
  }

  DType dtype() const { return dt_; }
  int64_t size() const { return n_; }
  int64_t bytes() const { return n_ * dtype_bytes(dt_); }
  void* data() { return base_ + start_; }
  const void* data() const { return base_ + start_; }
  float* floats() { return static_cast<float*>(data()); }
  double get(int64_t i) const {
    return dt_ == DType::kF32 ? static_cast<const float*>(data())[i]
                              : to_float(static_cast<const bf16*>(data())[i]);
  }
  void set(int64_t i, double v) {
    if (dt_ == DType::kF32) {
      static_cast<float*>(data())[i] = static_cast<float>(v);
    } else {
      static_cast<bf16*>(data())[i] = bf16_round(static_cast<float>(v));
    }
  }
  Doubles doubles() const {
    Doubles out(static_cast<size_t>(n_));
    for (int64_t i = 0; i < n_; ++i) out[static_cast<size_t>(i)] = get(i);
    return out;
  }
  TestTensor& fill(double v) {
    for (int64_t i = 0; i < n_; ++i) set(i, v);
    return *this;
  }
  // Standard normal numbers times scale, the same for the same seed.
  TestTensor& randomise(uint64_t seed, double scale = 1.0) {
    for (int64_t i = 0; i < n_; ++i) {
      set(i, scale * random_normal(seed, RandomPurpose::kTest, 0, static_cast<uint64_t>(i)));
    }
    return *this;
  }
  std::string bits() const { return std::string(static_cast<const char*>(data()), bytes()); }

 private:
  static constexpr int64_t kGuard = 64;
  DType dt_;
  int64_t n_, start_;
  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
};

// |got - want| <= tolerance, element by element; names the worst element and how many are outside.
inline void expect_close(const std::string& what, const Doubles& got, const Doubles& want,
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

// A stream with its pool.
struct TestLane {
  explicit TestLane(int threads)
      : pool(std::make_shared<ThreadPool>(threads)), stream(make_host_stream("test", pool)) {}
  std::shared_ptr<ThreadPool> pool;
  std::unique_ptr<Stream> stream;
};

// The lane most tests use.
inline Stream& test_stream() {
  static TestLane lane(2);
  return *lane.stream;
}

// `run` computes on a stream and returns the bits of its outputs; they must be the same for every
// thread count.
inline void expect_same_bits(const std::function<std::string(Stream&)>& run) {
  TestLane one(1);
  const std::string want = run(*one.stream);
  for (int threads = 2; threads <= 4; ++threads) {
    TestLane lane(threads);
    EXPECT_EQ(run(*lane.stream) == want, true) << threads << " threads differ from one";
  }
}

// d f / d x[i] for every i, by central differences in double. f is a scalar of the whole vector.
inline Doubles finite_differences(Doubles x, const std::function<double(const Doubles&)>& f,
                                  double step = 1e-5) {
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

inline double inner(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline double root_mean_square(const Doubles& a) {
  return a.empty() ? 0.0 : std::sqrt(inner(a, a) / static_cast<double>(a.size()));
}

inline const DType kDTypes[] = {DType::kF32, DType::kBF16};

}  // namespace pagoda
