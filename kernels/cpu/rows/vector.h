// Sixteen fp32 lanes as one value.
//
// The lane count is part of the arithmetic: every sum over a row is sixteen interleaved partial
// sums joined by one fixed tree, whatever width the processor has, so results are the same on every
// ISA. Vec functions are always inlined into the clone that calls them. No pointer needs alignment.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "base/target_clones.h"

namespace pagoda {

inline constexpr int64_t kLanes = 16;
using Vec = float __attribute__((vector_size(64)));
using UVec = uint32_t __attribute__((vector_size(64)));

// A function that a cloned function calls must be inlined into it: outside it would be baseline
// code.
#define PAGODA_INLINE [[gnu::always_inline]] inline
#define PAGODA_INLINE_LAMBDA __attribute__((always_inline))

PAGODA_INLINE Vec splat(float v) { return Vec{} + v; }
PAGODA_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
PAGODA_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

// The first `count` <= 16 lanes from or to memory; absent lanes read as `absent`.
PAGODA_INLINE Vec load_lanes(const float* p, int64_t count, float absent = 0.0f) {
  if (count == kLanes) return load(p);
  Vec v = splat(absent);
  std::memcpy(&v, p, static_cast<size_t>(count) * sizeof(float));
  return v;
}
PAGODA_INLINE void store_lanes(float* p, Vec v, int64_t count) {
  if (count == kLanes) return store(p, v);
  std::memcpy(p, &v, static_cast<size_t>(count) * sizeof(float));
}

// Lanes as bf16 to nearest-even, NaN quiet (bf16_round).
using HalfRow = uint16_t __attribute__((vector_size(32)));
PAGODA_INLINE HalfRow round_lanes(Vec v) {
  const UVec w = std::bit_cast<UVec>(v);
  const UVec rounded = (w + 0x7fffu + ((w >> 16) & 1u)) >> 16;
  const UVec quiet = (w >> 16) | 0x40u;
  return __builtin_convertvector((w & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, HalfRow);
}
PAGODA_INLINE Vec widen_lanes(HalfRow v) {
  return std::bit_cast<Vec>(__builtin_convertvector(v, UVec) << 16);
}

// Elements of either type are read as fp32 and written rounded; below also the value that a reader
// of a written element sees.
PAGODA_INLINE Vec load_lanes(const bf16* p, int64_t count) {
  HalfRow v{};
  std::memcpy(&v, p, count == kLanes ? sizeof v : static_cast<size_t>(count) * sizeof(bf16));
  return widen_lanes(v);
}
PAGODA_INLINE void store_lanes(bf16* p, Vec v, int64_t count) {
  const HalfRow rounded = round_lanes(v);
  std::memcpy(p, &rounded, count == kLanes ? sizeof rounded
                                           : static_cast<size_t>(count) * sizeof(bf16));
}
template <typename T>
PAGODA_INLINE Vec as_stored(Vec v) {
  if constexpr (std::is_same_v<T, bf16>) return widen_lanes(round_lanes(v));
  return v;
}

// Numbers of a vector's columns that starts at column i.
PAGODA_INLINE Vec columns_from(int64_t i) {
  const Vec first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return first + static_cast<float>(i);
}

// body(T()) with T the elements' type: kernels that read and write tensors in one pass.
template <typename Body>
PAGODA_INLINE void with_type(DType dt, Body&& body) {
  if (dt == DType::kF32) {
    body(float());
  } else {
    body(bf16());
  }
}

// Joins lanes i and i + 8, then i and i + 4, and so on: one tree for every ISA.
template <typename Join>
PAGODA_INLINE float join_lanes(Vec v, Join&& join) {
  float a[16], b[8], c[4], d[2];
  store(a, v);
  for (int i = 0; i < 8; ++i) b[i] = join(a[i], a[i + 8]);
  for (int i = 0; i < 4; ++i) c[i] = join(b[i], b[i + 4]);
  for (int i = 0; i < 2; ++i) d[i] = join(c[i], c[i + 2]);
  return join(d[0], d[1]);
}
PAGODA_INLINE float sum_lanes(Vec v) {
  return join_lanes(v, [](float a, float b) PAGODA_INLINE_LAMBDA { return a + b; });
}
PAGODA_INLINE float max_lane(Vec v) {
  return join_lanes(v, [](float a, float b) PAGODA_INLINE_LAMBDA { return a > b ? a : b; });
}

// e^x, relative error below 3e-7 on [-87.3, 88.3] (tested against double). Below that range it is
// 0, above it e^88.3; NaN stays NaN. Method: x = n ln2 + r with ln2 in two parts (Cody & Waite
// 1980), Taylor polynomial of degree 7 on |r| <= ln2/2, whose remainder is 5e-9, times 2^n.
PAGODA_INLINE Vec exp_lanes(Vec x) {
  const Vec low = splat(-87.3f), high = splat(88.3f);
  const Vec clamped = x > high ? high : (x < low ? low : x);
  const float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = clamped * 1.44269504088896341f + kRound;
  const Vec n = shifted - kRound;
  const Vec r = (clamped - n * 0.693359375f) - n * -2.12194440054690583e-4f;
  Vec p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * (r * r) + (r + 1.0f);
  const UVec power = (std::bit_cast<UVec>(shifted) + 127u) << 23;
  const Vec value = p * std::bit_cast<Vec>(power);
  return x < low ? splat(0.0f) : value;
}

// 2^x, relative error below 2e-7, exactly 1 at 0, for x up to 127; 2^-126 for what is less; NaN
// stays NaN. Method: x = n + f with |f| <= 1/2, the polynomial of degree 5 through 1 whose largest
// relative error there is least (by Lawson's weights, 1961), times 2^n.
PAGODA_INLINE Vec exp2_lanes(Vec x) {
  const Vec low = splat(-126.0f);
  const Vec clamped = low > x ? low : x;
  const float kRound = 12582912.0f + 127.0f;  // the low bits then hold n and the exponent's bias
  const Vec shifted = clamped + kRound;
  const Vec f = clamped - (shifted - kRound);
  Vec p = splat(1.3264728e-3f);
  p = p * f + 9.671513e-3f;
  p = p * f + 5.5507336e-2f;
  p = p * f + 0.24022242f;
  p = p * f + 0.693147f;
  p = p * f + 1.0f;
  return p * std::bit_cast<Vec>(std::bit_cast<UVec>(shifted) << 23);
}

PAGODA_INLINE Vec sigmoid_lanes(Vec x) { return 1.0f / (1.0f + exp_lanes(-x)); }

// Calls body(offset, count): whole vectors (count 16), then the rest (count < 16).
template <typename Body>
PAGODA_INLINE void for_lanes(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}

}  // namespace pagoda
