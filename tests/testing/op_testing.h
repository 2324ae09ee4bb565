// What the tests of kernels share: random tensors with guards, comparison against double-precision
// references with the worst element printed, and runs on several thread counts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
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
  TestTensor(DType dt, int64_t n, int64_t offset = 0);
  TestTensor(const TestTensor&) = delete;  // base_ points into memory_
  TestTensor(TestTensor&&) = default;
  ~TestTensor();

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
  Doubles doubles() const;
  TestTensor& fill(double v);
  // Standard normal numbers times scale, the same for the same seed.
  TestTensor& randomise(uint64_t seed, double scale = 1.0);
  std::string bits() const { return std::string(static_cast<const char*>(data()), bytes()); }

 private:
  static constexpr int64_t kGuard = 64;
  DType dt_;
  int64_t n_, start_;
  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
};

// |got - want| <= tolerance, element by element; names the worst element and how many are outside.
void expect_close(const std::string& what, const Doubles& got, const Doubles& want,
                  const std::function<double(size_t)>& tolerance);

// A stream with its pool.
struct TestLane {
  explicit TestLane(int threads)
      : pool(std::make_shared<ThreadPool>(threads)), stream(make_host_stream({"test"}, pool)) {}
  std::shared_ptr<ThreadPool> pool;
  std::unique_ptr<Stream> stream;
};

// The lane most tests use.
Stream& test_stream();

// `run` computes on a stream and returns the bits of its outputs; they must be the same for every
// thread count.
void expect_same_bits(const std::function<std::string(Stream&)>& run);

// d f / d x[i] for every i, by central differences in double. f is a scalar of the whole vector.
Doubles finite_differences(Doubles x, const std::function<double(const Doubles&)>& f,
                          double step = 1e-5);

double inner(const Doubles& a, const Doubles& b);
double root_mean_square(const Doubles& a);

inline const DType kDTypes[] = {DType::kF32, DType::kBF16};

}  // namespace pagoda
