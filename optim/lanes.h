// A few fp32 lanes as one value, for code that is compiled once per ISA with the lanes of one
// register: 16 (AVX-512), 8 (AVX2) or 4 (SSE2, NEON). Every operation is element by element and
// rounds by IEEE 754, so results do not depend on the number of lanes.
//
// Sixteen bits wide values are read two to a lane: the even elements of a stretch come as one
// vector, the odd ones as another, without a shuffle. A Pair is such a stretch of 2 * kCount
// elements.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cmath>
#endif

namespace pagoda {

#define PAGODA_LANES [[gnu::always_inline]] static inline

// Fetches the lines of 64 elements of kBytes each, kAheadElements before they are used.
inline constexpr int64_t kAheadElements = 512;
template <int64_t kBytes>
PAGODA_LANES void fetch_ahead(const void* at) {
  const char* ahead = static_cast<const char*>(at) + kAheadElements * kBytes;
  for (int64_t line = 0; line < kBytes; ++line) __builtin_prefetch(ahead + line * 64);
}

template <int kCount>
struct Vectors;
#define PAGODA_VECTORS(count)                                            \
  template <>                                                            \
  struct Vectors<count> {                                                \
    using Floats = float __attribute__((vector_size(4 * count)));        \
    using Bits = uint32_t __attribute__((vector_size(4 * count)));       \
    using Ints = int32_t __attribute__((vector_size(4 * count)));        \
    using Words = uint16_t __attribute__((vector_size(4 * count)));      \
    using SignedWords = int16_t __attribute__((vector_size(4 * count))); \
  }
PAGODA_VECTORS(4);
PAGODA_VECTORS(8);
PAGODA_VECTORS(16);
#undef PAGODA_VECTORS

template <int kCount>
struct Lanes {
  using Floats = typename Vectors<kCount>::Floats;
  using Bits = typename Vectors<kCount>::Bits;
  using Ints = typename Vectors<kCount>::Ints;
  using Words = typename Vectors<kCount>::Words;  // two to a lane

  struct Pair {
    Floats even, odd;
  };
  // Two stretches of 2 * kCount elements within 64 elements: from i on, and from i + 32 on.
  struct Quad {
    Pair low, high;
  };

  static constexpr uint32_t kHighHalf = 0xffff0000u, kLowHalf = 0xffffu, kSign = 0x80000000u;

  PAGODA_LANES Floats splat(float value) { return Floats{} + value; }
  PAGODA_LANES Words splat_word(uint32_t value) { return words(Bits{} + value * 0x10001u); }
  PAGODA_LANES Bits numbered_from(uint32_t first) { return count(Indices()) + first; }
  PAGODA_LANES Bits rotated_left(Bits v, int by) { return (v << by) | (v >> (32 - by)); }
  PAGODA_LANES Bits bits(Floats v) { return __builtin_bit_cast(Bits, v); }
  PAGODA_LANES Bits bits(Ints v) { return __builtin_bit_cast(Bits, v); }
  PAGODA_LANES Bits bits(Words v) { return __builtin_bit_cast(Bits, v); }
  PAGODA_LANES Floats floats(Bits v) { return __builtin_bit_cast(Floats, v); }
  PAGODA_LANES Ints ints(Bits v) { return __builtin_bit_cast(Ints, v); }
  PAGODA_LANES Words words(Bits v) { return __builtin_bit_cast(Words, v); }
  PAGODA_LANES Bits magnitude(Floats v) { return bits(v) & ~kSign; }
  // (v & mask) | more
  PAGODA_LANES Bits masked_or(Bits v, uint32_t mask, Bits more) {
#if defined(__x86_64__)
    if constexpr (kCount == 16) {
      return __builtin_bit_cast(Bits, _mm512_ternarylogic_epi32(
                                          native(v), native(Bits{} + mask), native(more), 0xea));
    }
#endif
    return (v & mask) | more;
  }
  PAGODA_LANES Ints larger(Ints a, Ints b) { return a > b ? a : b; }
  // `so_far`, or the bits of |v| if that is larger; either if v is NaN. REQUIRES: so_far is zeros
  // or came from here.
  PAGODA_LANES Ints larger_magnitude(Ints so_far, Floats v) {
#if defined(__x86_64__)
    constexpr int kOfMagnitudes = 0b1011;
    if constexpr (kCount == 16) {
      return __builtin_bit_cast(
          Ints, _mm512_maskz_range_ps(0xffff, floats(bits(so_far)), v, kOfMagnitudes));
    }
#endif
    return larger(so_far, ints(magnitude(v)));
  }
  // a * b - c, rounded once or twice. REQUIRES: a * b is exact, so that both give the same.
  PAGODA_LANES Floats exact_product_minus(Floats a, Floats b, Floats c) {
#if defined(__x86_64__)
    if constexpr (kCount == 16) return _mm512_fmsub_ps(a, b, c);
    if constexpr (kCount == 8) return _mm256_fmsub_ps(a, b, c);
#endif
    return a * b - c;
  }

  PAGODA_LANES Bits load(const void* at) {
    Bits v;
    std::memcpy(&v, at, sizeof v);
    return v;
  }
  PAGODA_LANES void store(void* at, Bits v) { std::memcpy(at, &v, sizeof v); }

  // The lower 16 bits of each lane as a signed number; below, the higher 16 bits.
  PAGODA_LANES Bits signed_low_half(Bits both) {
#if defined(__x86_64__)
    if constexpr (kCount == 16) {
      return __builtin_bit_cast(Bits, _mm512_madd_epi16(native(both), _mm512_set1_epi32(1)));
    }
#endif
    return signed_high_half(both << 16);
  }
  PAGODA_LANES Bits signed_high_half(Bits both) { return bits(ints(both) >> 16); }
  // Each word as a signed number, divided by 2^by and rounded down.
  PAGODA_LANES Words signed_shift_down(Words v, int by) {
    using SignedWords = typename Vectors<kCount>::SignedWords;
    return __builtin_bit_cast(Words, __builtin_bit_cast(SignedWords, v) >> by);
  }
  // Lanes whose lower half comes from `low` and whose higher half comes from `high`: the lower
  // halves of both, or the higher halves of both.
  PAGODA_LANES Bits joined_low_halves(Bits low, Bits high) {
#if defined(__x86_64__)
    if constexpr (kCount == 16) return moved_bytes<0xcccccccccccccccc, 0x01000302>(low, high);
#endif
    return (low & kLowHalf) | (high << 16);
  }
  PAGODA_LANES Bits joined_high_halves(Bits low, Bits high) {
#if defined(__x86_64__)
    if constexpr (kCount == 16) return moved_bytes<0x3333333333333333, 0x01000302>(high, low);
#endif
    return (low >> 16) | (high & kHighHalf);
  }
  // Words whose first byte is the higher byte of `low` and whose second is the higher byte of
  // `high`.
  PAGODA_LANES Bits joined_high_bytes(Words low, Words high) {
#if defined(__x86_64__)
    if constexpr (kCount == 16) {
      return moved_bytes<0x5555555555555555, 0x03030101>(bits(high), bits(low));
    }
#endif
    return bits((low >> 8) | (high & uint16_t{0xff00}));
  }
  // a - b, or 0 if that is less.
  PAGODA_LANES Words minus_or_zero(Words a, Words b) {
#if defined(__x86_64__)
    if constexpr (kCount == 16) {
      return __builtin_bit_cast(Words, _mm512_subs_epu16(native(bits(a)), native(bits(b))));
    }
#endif
    return (a > b ? a : b) - b;
  }

  PAGODA_LANES Pair widen(Bits both) { return {floats(both << 16), floats(both & kHighHalf)}; }

  PAGODA_LANES Pair load_floats(const float* at) {
    const Floats a = floats(load(at)), b = floats(load(at + kCount));
    return {evens(a, b, Indices()), odds(a, b, Indices())};
  }
  PAGODA_LANES void store_floats(float* at, const Pair& pair) {
    store(at, bits(first_half(pair, Indices())));
    store(at + kCount, bits(second_half(pair, Indices())));
  }

  PAGODA_LANES Floats root(Floats v) {
#if defined(__x86_64__)
    // Its unmasked form warns of an uninitialised value (GCC bug 105593).
    if constexpr (kCount == 16) return _mm512_maskz_sqrt_ps(0xffff, v);
    if constexpr (kCount == 8) return _mm256_sqrt_ps(v);
    if constexpr (kCount == 4) return _mm_sqrt_ps(v);
#else
    for (int i = 0; i < kCount; ++i) v[i] = std::sqrt(v[i]);
    return v;
#endif
  }

  // x / divisor, rounded as a division rounds; NaN for an infinite x. With the divisor's reciprocal
  // three operations do that on a processor with a fused multiply-add, and its divider stays free
  // (Markstein 1990; Brisebarre, Muller & Raina 2004). REQUIRES: `reciprocal` is 1 / divisor as
  // rounded; divisor in [2^-40, 2^40]; x is 0, in [2^-80, 2^80], infinite or NaN.
  PAGODA_LANES Floats quotient(Floats x, Floats divisor, [[maybe_unused]] Floats reciprocal) {
#if defined(__x86_64__)
    if constexpr (kCount == 16) {
      const Floats near = x * reciprocal;
      return _mm512_fmadd_ps(_mm512_fnmadd_ps(near, divisor, x), reciprocal, near);
    }
    if constexpr (kCount == 8) {
      const Floats near = x * reciprocal;
      return _mm256_fmadd_ps(_mm256_fnmadd_ps(near, divisor, x), reciprocal, near);
    }
#endif
    return x / divisor + (x - x);
  }

  PAGODA_LANES int32_t largest_lane(Ints v) { return largest_of<kCount / 2>(v); }

 private:
  using Indices = std::make_integer_sequence<int, kCount>;

#if defined(__x86_64__)
  PAGODA_LANES __m512i native(Bits v) { return __builtin_bit_cast(__m512i, v); }
  // `onto`, with the bytes whose bits are set in kTaken replaced by the bytes of the same lane of
  // `from` that kOrder names.
  template <uint64_t kTaken, uint32_t kOrder>
  PAGODA_LANES Bits moved_bytes(Bits onto, Bits from) {
    const __m512i order = native((numbered_from(0) % 4 * 0x04040404u) + kOrder);
    return __builtin_bit_cast(
        Bits, _mm512_mask_shuffle_epi8(native(onto), kTaken, native(from), order));
  }
#endif
  // The largest of all lanes; each lane already stands for the one `by` further on as well.
  template <int by>
  PAGODA_LANES int32_t largest_of(Ints v) {
    const Ints largest = larger(v, rotated<by>(v, Indices()));
    if constexpr (by == 1) {
      return largest[0];
    } else {
      return largest_of<by / 2>(largest);
    }
  }
  template <int by, int... i>
  PAGODA_LANES Ints rotated(Ints v, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(v, v, ((i + by) % kCount)...);
  }

  template <int... i>
  PAGODA_LANES Bits count(std::integer_sequence<int, i...>) {
    return Bits{i...};
  }
  template <int... i>
  PAGODA_LANES Floats evens(Floats a, Floats b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (2 * i)...);
  }
  template <int... i>
  PAGODA_LANES Floats odds(Floats a, Floats b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (2 * i + 1)...);
  }
  template <int... i>
  PAGODA_LANES Floats first_half(const Pair& p, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(p.even, p.odd, (i / 2 + i % 2 * kCount)...);
  }
  template <int... i>
  PAGODA_LANES Floats second_half(const Pair& p, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(p.even, p.odd, (kCount / 2 + i / 2 + i % 2 * kCount)...);
  }
};

}  // namespace pagoda
