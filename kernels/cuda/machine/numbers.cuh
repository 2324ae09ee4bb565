// Elements and scalar functions of kernels. They do operation by operation what
// kernels/cpu/rows/vector.h does, without fused multiply-adds, so that elementwise results have the
// CPU's bits.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cuda/machine/machine.cuh"

namespace pagoda::PAGODA_MACHINE {

PAGODA_GPU float widen(float v) { return v; }
PAGODA_GPU float widen(bf16 v) { return float_of(uint32_t{v.bits} << 16); }

// Rounds to nearest, ties to even, NaN quiet (bf16_round).
PAGODA_GPU bf16 to_bf16(float v) {
  const uint32_t w = bits_of(v);
  if ((w & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((w >> 16) | 0x40u)};
  return {static_cast<uint16_t>((w + 0x7fffu + ((w >> 16) & 1u)) >> 16)};
}
template <typename T>
PAGODA_GPU T rounded(float v) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(v);
  } else {
    return v;
  }
}
// The value that a reader of the rounded element sees.
template <typename T>
PAGODA_GPU float as_stored(float v) {
  return widen(rounded<T>(v));
}

// e^x with the operations of exp_lanes: relative error below 3e-7 on [-87.3, 88.3], 0 below that,
// e^88.3 above it, NaN for NaN.
PAGODA_GPU float exponential(float x) {
  const float low = -87.3f, high = 88.3f;
  const float clamped = x > high ? high : (x < low ? low : x);
  const float round = 12582912.0f;
  const float shifted = clamped * 1.44269504088896341f + round;
  const float n = shifted - round;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440054690583e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * (r * r) + (r + 1.0f);
  const float value = p * float_of((bits_of(shifted) + 127u) << 23);
  return x < low ? 0.0f : value;
}
PAGODA_GPU float sigmoid_of(float x) { return 1.0f / (1.0f + exponential(-x)); }

PAGODA_GPU float larger(float a, float b) { return a > b ? a : b; }
PAGODA_GPU uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
PAGODA_BOTH int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
PAGODA_BOTH int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
// a / b of positive numbers, by the short division where it will do.
PAGODA_BOTH int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// Element pointers of tensors whose type is known only at run time.
template <typename T>
const T* typed(const void* p) {
  return static_cast<const T*>(p);
}
template <typename T>
T* typed(void* p) {
  return static_cast<T*>(p);
}
// body(T()) with T the elements' type.
template <typename Body>
void with_type(DType dt, Body&& body) {
  if (dt == DType::kF32) {
    body(float());
  } else {
    body(bf16());
  }
}

// Calls body(row, column) for every element of (rows, columns), four elements a thread.
template <typename Body>
struct EachElement {
  static constexpr int kThreads = 256, kSharedBytes = 0, kPerThread = 4;
  int64_t elements, columns;
  Body body;
  PAGODA_GPU void operator()() const {
    const int64_t first = block_number() * (kThreads * kPerThread) + thread_number();
    PAGODA_UNROLL
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t i = first + j * kThreads;
      if (i >= elements) return;
      const int64_t row = quotient(i, columns);
      body(row, i - row * columns);
    }
  }
};
template <typename Body>
void for_each_element(Queue& queue, int64_t rows, int64_t columns, const Body& body) {
  using Kernel = EachElement<Body>;
  const int64_t elements = rows * columns;
  queue.launch(div_ceil(elements, Kernel::kThreads * Kernel::kPerThread),
               Kernel{elements, columns, body});
}

}  // namespace pagoda::PAGODA_MACHINE
