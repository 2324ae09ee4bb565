// Sums and maxima over a warp or a block, each by one fixed tree.
#pragma once

#include "kernels/cuda/machine/numbers.cuh"

namespace pagoda::PAGODA_MACHINE {

struct Sum {
  template <typename T>
  PAGODA_GPU T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  PAGODA_GPU float operator()(float a, float b) const { return larger(a, b); }
};

// Returns the same value in every lane: join() must be commutative.
template <typename T, typename Join>
PAGODA_GPU T join_warp(T value, Join join) {
  PAGODA_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = join(value, shuffle_xor(value, mask));
  return value;
}

// Returns the same value in every thread. `memory`: kThreads / 32 values, which are free again
// afterwards.
template <int kThreads, typename T, typename Join>
PAGODA_GPU T join_block(T value, Join join, T* memory) {
  value = join_warp(value, join);
  if (lane_number() == 0) memory[warp_number()] = value;
  sync_block();
  T all = memory[0];
  PAGODA_UNROLL
  for (int i = 1; i < kThreads / kWarp; ++i) all = join(all, memory[i]);
  sync_block();
  return all;
}

// The sum of n numbers in their order, added to *total or put in its place.
template <bool kAdd>
struct OrderedSum {
  static constexpr int kThreads = 256, kSharedBytes = kThreads * 8;
  const double* terms;
  int64_t n;
  double* total;
  PAGODA_GPU void operator()() const {
    double* piece = reinterpret_cast<double*>(shared_memory());
    double sum = kAdd ? *total : 0.0;
    for (int64_t first = 0; first < n; first += kThreads) {
      const int count = static_cast<int>(smaller(kThreads, n - first));
      if (thread_number() < count) piece[thread_number()] = terms[first + thread_number()];
      sync_block();
      for (int i = 0; i < count; ++i) sum += piece[i];
      sync_block();
    }
    if (thread_number() == 0) *total = sum;
  }
};

}  // namespace pagoda::PAGODA_MACHINE
