// One comparison of an op with the CPU's: the same call on the same tensors on both sides. The side
// that is tried runs twice and must give the same bits; nothing may be written outside tensors.
//
// Shared by gpu_check, which tries the GPU, and by the tests, which try the emulation; so it needs
// no testing framework.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/adam.h"
#include "kernels/ops.h"

namespace pagoda::check {

// Largest relative error of one rounding.
inline constexpr double kEps32 = 0x1p-24, kEpsBf16 = 0x1p-8;
inline double rounding_of(DType dt) { return dt == DType::kF32 ? kEps32 : kEpsBf16; }
inline const DType kDTypes[] = {DType::kF32, DType::kBF16};

enum class Kind { kF32, kBF16, kI32, kF64, kU8 };
inline Kind kind_of(DType dt) { return dt == DType::kF32 ? Kind::kF32 : Kind::kBF16; }

// A tensor of both sides: what it held before the call and after it.
struct Tensor {
  Kind kind;
  int64_t n;
  std::vector<std::byte> before, want, got;
  int64_t at = 0;  // in the tried side's memory
  int64_t size() const { return static_cast<int64_t>(before.size()); }
};

// A pointer of one side, which converts to the type of an op's argument.
struct Pointer {
  void* p;
  template <typename T>
  operator T*() const {
    return static_cast<T*>(p);
  }
  operator InputRows() const { return p; }
  operator OutputRows() const { return p; }
  Pointer operator+(int64_t bytes) const { return {static_cast<std::byte*>(p) + bytes}; }
};
using At = std::function<Pointer(const Tensor&)>;

// The side that is tried.
struct Candidate {
  Ops* ops;
  DeviceAdam* adam;
  Stream* stream;
  std::byte* memory;  // the stream's device's
  int64_t bytes;
  std::function<void(bool second)> before_run = [](bool) {};
};

class Trial {
 public:
  explicit Trial(Candidate& candidate) : candidate_(candidate) {}

  // Standard normal numbers times scale; `offset`: elements past a border of 256 bytes.
  Tensor& random(DType dt, int64_t n, uint64_t seed, double scale = 1.0, int64_t offset = 0);
  Tensor& filled(DType dt, int64_t n, double value = 7.0);
  Tensor& numbers(DType dt, const std::vector<double>& values);
  Tensor& ints(std::vector<int32_t> values);
  Tensor& bytes(std::vector<uint8_t> values);
  Tensor& doubles(std::vector<double> values);

  // Runs the call on the reference, then twice on the candidate. `reference`: the CPU's ops; a call
  // that ignores it may compute what is wanted itself.
  void run(const std::function<void(Ops& ops, const At& at, Stream& s)>& call);
  // The same with a call of its own for each side.
  void run(const std::function<void(const At& at, Stream& s)>& reference,
           const std::function<void(const At& at, Stream& s)>& tried);

  void expect_same(const std::string& what, const Tensor& t);
  // What is wanted and not finite must be the same.
  void expect_close(const std::string& what, const Tensor& t,
                    const std::function<double(int64_t)>& tolerance);
  void fail(const std::string& line) { faults_ += line + "\n"; }

  const Candidate& candidate() const { return candidate_; }
  // A line each; empty: as it should be.
  const std::string& faults() const { return faults_; }

 private:
  Tensor& add(Kind kind, int64_t n, int64_t offset);
  void try_once(const std::function<void(const At& at, Stream& s)>& tried, bool second);

  Candidate& candidate_;
  std::deque<Tensor> tensors_;
  int64_t used_ = 0;
  std::string faults_;
};

double value_at(const Tensor& t, const std::vector<std::byte>& bytes, int64_t i);
inline double before(const Tensor& t, int64_t i) { return value_at(t, t.before, i); }
inline double want(const Tensor& t, int64_t i) { return value_at(t, t.want, i); }

// Both sides add `terms` products of these sizes in an order of their own; fp32 sums round each
// step by 2^-24, those of tensor cores, which truncate, by up to 2^-22. Then dt rounds both.
inline double product_error(DType dt, DType y_dt, int64_t terms, double size, double value) {
  const double step = dt == DType::kBF16 ? 0x1p-22 : 0x1p-24;
  const double rounding = y_dt == DType::kBF16 ? 2.02 * kEpsBf16 : 2 * kEps32;
  return 2 * static_cast<double>(terms) * step * size + rounding * std::abs(value) + 1e-30;
}

// What products of tiles that became fp16 may lack (kernels/cuda/tiles/fp16_tile.cuh): of each
// number 2^-39 of the largest in its stretch of 64.
template <typename A, typename B>
double fp16_error(int64_t depth, const A& a, const B& b) {
  double error = 0.0;
  for (int64_t first = 0; first < depth; first += 64) {
    double sums[2] = {0.0, 0.0}, most[2] = {0.0, 0.0};
    for (int64_t d = first; d < std::min(depth, first + 64); ++d) {
      const double sizes[] = {std::abs(a(d)), std::abs(b(d))};
      for (int side = 0; side < 2; ++side) {
        sums[side] += sizes[side];
        most[side] = std::max(most[side], sizes[side]);
      }
    }
    error += 1.01 * 0x1p-39 * (sums[0] * most[1] + most[0] * sums[1]);
  }
  return error;
}

// sum over d of |a(d) b(d)|
template <typename A, typename B>
double size_of(int64_t depth, const A& a, const B& b) {
  double size = 0.0;
  for (int64_t d = 0; d < depth; ++d) size += std::abs(a(d) * b(d));
  return size;
}

struct OpCase {
  std::string name;
  std::function<void(Trial&)> body;
};
std::vector<OpCase> row_cases(), norm_cases(), linear_cases(), route_cases(), loss_cases(),
    attention_cases(), library_attention_cases(), grouped_cases(), library_product_cases(),
    adam_cases();

}  // namespace pagoda::check
