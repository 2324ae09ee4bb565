// Adam's moments in fewer bits. If a moving average were rounded to nearest it would stand still,
// since the share 1 - beta of the new value is below half a step of 8 or 16 bits. So it is rounded
// stochastically: up with the probability that makes it right on average, by a hash of the
// element's number and a key that the caller draws per record and update. There is no state, so a
// replay gives the same bits. In each 64 elements, 2 i + {0, 1, 32, 33} share the hash of the
// number k = (number of the 64 elements) * 16 + i. The first element's m takes its low bits as
// noise, the second's its high bits, and the last two do the same with the hash rotated left by 6;
// each v takes the noise of its neighbour's m. Moments of 8 bits are hashed in the same way for
// each 128 elements, whose latter half takes the hash of the former rotated left by 3.
//
// 8 bits (after Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv
// 2110.02861, with plain floats in place of their table, which vector units convert without a
// search): each block of kMomentBlock elements has a scale, the power of two that leaves its
// largest magnitude below 1.875 - 2^-13 of it, at least 2^-95, or 0 for a block of zeros. A value
// over its scale has 3 bits of mantissa. With F(c) the fp32 of the bits c << 20,
//   m: sign, and code c of 7 bits for F(896 + c) - F(896), where F(896) = 2^-15: evenly spaced
//      around 0, as floats above 2^-15
//   v: code c of 8 bits for F(768 + c), from 2^-31 up: smaller values, 0 too, become 2^-31,
//      since a v of 0 would make the step boundless
// times the scale. In each 64 codes, byte 4 i + j belongs to element 2 i + {0, 32, 1, 33}[j]: the
// lanes of 32 bits of a vector of codes then match those of vectors that hold two weights a lane.
#pragma once

#include <cstdint>

#include "optim/adam_kernel.h"
#include "optim/lanes.h"

namespace pagoda {

// An integer hash of 32 bits with low bias (Wellons 2018, "Prospecting for Hash Functions").
template <typename Bits>
[[gnu::always_inline]] inline Bits moment_noise(Bits number, uint32_t key) {
  Bits x = number ^ key;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// The number of quads of a block, and the index of the quad at element i among them.
template <int kCount>
inline constexpr int64_t kQuads = kMomentBlock / (4 * kCount);
template <int kCount>
PAGODA_LANES int64_t quad_slot(int64_t i) {
  return i % kMomentBlock / 64 * (16 / kCount) + i % 64 / (2 * kCount);
}

// The three classes below hold the moments of a stretch of a record. Use them block by block:
// begin_block, then load and store for its quads in order, then end_block, then convert for each
// two quads that are 64 elements apart. `i` is the number of an element in the stretch.

template <int kCount>
class Fp32Moments {
 public:
  using V = Lanes<kCount>;
  Fp32Moments(const AdamBlocks& blocks, uint32_t)
      : m_(static_cast<float*>(blocks.m)), v_(static_cast<float*>(blocks.v)) {}

  [[gnu::always_inline]] void fetch(int64_t i) const {
    fetch_ahead<4>(m_ + i);
    fetch_ahead<4>(v_ + i);
  }
  PAGODA_LANES void begin_block(int64_t) {}
  PAGODA_LANES void end_block(int64_t) {}
  PAGODA_LANES void convert(int64_t) {}
  [[gnu::always_inline]] void load(int64_t i, typename V::Quad& m, typename V::Quad& v) const {
    m = {V::load_floats(m_ + i), V::load_floats(m_ + i + 32)};
    v = {V::load_floats(v_ + i), V::load_floats(v_ + i + 32)};
  }
  [[gnu::always_inline]] void store(int64_t i, const typename V::Quad& m,
                                    const typename V::Quad& v) {
    V::store_floats(m_ + i, m.low);
    V::store_floats(m_ + i + 32, m.high);
    V::store_floats(v_ + i, v.low);
    V::store_floats(v_ + i + 32, v.high);
  }

 private:
  float *m_, *v_;
};

template <int kCount>
class Bf16Moments {
 public:
  using V = Lanes<kCount>;
  Bf16Moments(const AdamBlocks& blocks, uint32_t key)
      : m_(static_cast<bf16*>(blocks.m)), v_(static_cast<bf16*>(blocks.v)), first_(blocks.first),
        key_(key) {}

  [[gnu::always_inline]] void fetch(int64_t i) const {
    fetch_ahead<2>(m_ + i);
    fetch_ahead<2>(v_ + i);
  }
  PAGODA_LANES void begin_block(int64_t) {}
  PAGODA_LANES void end_block(int64_t) {}
  PAGODA_LANES void convert(int64_t) {}
  [[gnu::always_inline]] void load(int64_t i, typename V::Quad& m, typename V::Quad& v) const {
    m = {V::widen(V::load(m_ + i)), V::widen(V::load(m_ + i + 32))};
    v = {V::widen(V::load(v_ + i)), V::widen(V::load(v_ + i + 32))};
  }
  [[gnu::always_inline]] void store(int64_t i, const typename V::Quad& m,
                                    const typename V::Quad& v) {
    const auto number = static_cast<uint32_t>((first_ + i) / 64 * 16 + i % 64 / 2);
    const auto noise = moment_noise(V::numbered_from(number), key_);
    store_pair(i, m.low, v.low, noise);
    store_pair(i + 32, m.high, v.high, V::rotated_left(noise, 6));
  }

 private:
  [[gnu::always_inline]] void store_pair(int64_t i, const typename V::Pair& m,
                                         const typename V::Pair& v, typename V::Bits noise) {
    const auto low = noise & V::kLowHalf, high = noise >> 16;
    V::store(m_ + i, rounded(m, low, high));
    V::store(v_ + i, rounded(v, high, low));
  }
  PAGODA_LANES typename V::Bits rounded(const typename V::Pair& value, typename V::Bits even_noise,
                                        typename V::Bits odd_noise) {
    return ((V::bits(value.even) + even_noise) >> 16) |
           ((V::bits(value.odd) + odd_noise) & V::kHighHalf);
  }

  bf16 *m_, *v_;
  int64_t first_;
  uint32_t key_;
};

// New moments wait in fp32 until the largest value of their block is known.
template <int kCount>
class ByteMoments {
 public:
  using V = Lanes<kCount>;
  ByteMoments(const AdamBlocks& blocks, uint32_t key)
      : m_(static_cast<uint8_t*>(blocks.m)), v_(static_cast<uint8_t*>(blocks.v)),
        scales_(blocks.scales), first_(blocks.first), key_(key) {}

  [[gnu::always_inline]] void fetch(int64_t i) const {
    fetch_ahead<1>(m_ + i);
    fetch_ahead<1>(v_ + i);
  }
  [[gnu::always_inline]] void begin_block(int64_t i) {
    const float* scale = scales_ + i / kMomentBlock * 2;
    m_scale_ = V::splat(scale[0]);
    m_least_ = V::bits(V::splat(scale[0] * kLeastM));
    v_least_half_ = high_half(scale[1] * kLeastV);
    m_largest_ = v_largest_ = typename V::Ints{};
  }

  [[gnu::always_inline]] void load(int64_t i, typename V::Quad& m, typename V::Quad& v) const {
    const auto m_codes = V::load(m_ + code_at(i)), v_codes = V::load(v_ + code_at(i));
    const auto m_words = V::words(m_codes), v_words = V::words(v_codes);
    m = {decode_m(m_words << 8), decode_m(m_words)};
    v = {decode_v(v_words << 4), decode_v(v_words >> 4)};
  }

  [[gnu::always_inline]] void store(int64_t i, const typename V::Quad& m,
                                    const typename V::Quad& v) {
    new_m_[quad_slot<kCount>(i)] = m;
    new_v_[quad_slot<kCount>(i)] = v;
    m_largest_ = V::larger_magnitude(V::larger_magnitude(m_largest_, m.low.even), m.low.odd);
    m_largest_ = V::larger_magnitude(V::larger_magnitude(m_largest_, m.high.even), m.high.odd);
    v_largest_ = V::larger(v_largest_, V::larger(largest(v.low), largest(v.high)));
  }

  [[gnu::always_inline]] void end_block(int64_t i) {
    float* scale = scales_ + i / kMomentBlock * 2;
    scale[0] = scale_of(static_cast<uint32_t>(V::largest_lane(m_largest_)));
    scale[1] = scale_of(static_cast<uint32_t>(V::largest_lane(v_largest_)));
    m_new_least_ = V::bits(V::splat(scale[0] * kLeastM));
    m_new_least_half_ = high_half(scale[0] * kLeastM);
    v_new_least_half_ = high_half(scale[1] * kLeastV);
  }

  // Stores the codes of the quads at elements i and i + 64.
  [[gnu::always_inline]] void convert(int64_t i) const {
    const auto number = static_cast<uint32_t>((first_ + i) / 128 * 16 + i % 64 / 2);
    const Bits noise = moment_noise(V::numbered_from(number), key_);
    convert(i, noise);
    convert(i + 64, V::rotated_left(noise, 3));
  }

 private:
  using Floats = typename V::Floats;
  using Bits = typename V::Bits;
  using Words = typename V::Words;
  static constexpr int kDroppedBits = 20;  // bits of an fp32 mantissa that are dropped, to leave 3
  static constexpr uint32_t kDropped = (1u << kDroppedBits) - 1;
  static constexpr float kSmallestScale = 0x1p-95f;
  static constexpr float kLeastM = 0x1p-15f, kLeastV = 0x1p-31f;  // relative to a scale
  static constexpr uint32_t kLeastMBits = 896u << kDroppedBits;   // the bits of kLeastM

  // Where the codes of the quad at element i begin.
  PAGODA_LANES int64_t code_at(int64_t i) { return i / 64 * 64 + i % 64 * 2; }

  // Decodes the codes in the higher bytes of words. Shifted, sign, exponent and mantissa are in
  // their places, with four more copies of the sign between them.
  [[gnu::always_inline]] typename V::Pair decode_m(Words codes) const {
    constexpr uint32_t kKept = (V::kSign | 0x7fu << kDroppedBits) >> 16;
    const Bits values = V::masked_or(V::bits(V::signed_shift_down(codes, 4)), kKept * 0x10001u,
                                     V::bits(V::splat_word(kLeastMBits >> 16)));
    const auto pair = V::widen(values);
    return {decode_m(pair.even), decode_m(pair.odd)};
  }
  [[gnu::always_inline]] Floats decode_m(Floats value) const {
    const Bits least = V::masked_or(V::bits(value), V::kSign, m_least_);
    return V::exact_product_minus(value, m_scale_, V::floats(least));
  }
  // Decodes the codes in bits 4 to 11 of words.
  [[gnu::always_inline]] typename V::Pair decode_v(Words codes) const {
    return V::widen(V::bits((codes & uint16_t{0xff0}) + v_least_half_));
  }
  // A code is the difference of the bits, with noise added and low bits dropped, to the bits of the
  // least value.
  [[gnu::always_inline]] void convert(int64_t i, Bits noise) const {
    const Bits next = V::rotated_left(noise, 6);
    const Bits low = noise & kDropped, high = noise >> 12;
    const Bits next_low = next & kDropped, next_high = next >> 12;
    const auto& m = new_m_[quad_slot<kCount>(i)];
    const auto& v = new_v_[quad_slot<kCount>(i)];
    V::store(m_ + code_at(i), V::joined_high_bytes(encode_m(m.low, low, high),
                                                   encode_m(m.high, next_low, next_high)));
    V::store(v_ + code_at(i), V::joined_high_bytes(encode_v(v.low, high, low),
                                                   encode_v(v.high, next_high, next_low)));
  }
  // Both give codes in the higher bytes of words.
  [[gnu::always_inline]] Words encode_m(const typename V::Pair& m, Bits even_noise,
                                        Bits odd_noise) const {
    const Bits halves = V::joined_high_halves(raised(m.even) + even_noise,
                                              raised(m.odd) + odd_noise);
    const Words code = V::words(halves) - m_new_least_half_;
    return V::words(V::masked_or(V::bits(code), 0x80008000u, V::bits(code << 4)));
  }
  [[gnu::always_inline]] Bits raised(Floats m) const {
    return V::bits(m + V::floats(V::masked_or(V::bits(m), V::kSign, m_new_least_)));
  }
  [[gnu::always_inline]] Words encode_v(const typename V::Pair& v, Bits even_noise,
                                        Bits odd_noise) const {
    const Bits halves = V::joined_high_halves(V::bits(v.even) + even_noise,
                                              V::bits(v.odd) + odd_noise);
    return V::minus_or_zero(V::words(halves), v_new_least_half_) << 4;
  }
  PAGODA_LANES Words high_half(float value) {
    return V::splat_word(__builtin_bit_cast(uint32_t, value) >> 16);
  }

  // The largest of values that are not negative, whose bits have the same order; NaN may go unseen.
  PAGODA_LANES typename V::Ints largest(const typename V::Pair& pair) {
    return V::larger(V::ints(V::bits(pair.even)), V::ints(V::bits(pair.odd)));
  }
  // The scale of a block whose largest magnitude has these bits. For an infinity it is infinite, so
  // that values which are too large come back as infinity or NaN. For a block with NaN it may be
  // anything, since the update fails.
  PAGODA_LANES float scale_of(uint32_t largest) {
    constexpr uint32_t kRoom = (1u << kDroppedBits) + (1u << 10), kExponent = 0x7f800000u;
    const float scale = __builtin_bit_cast(float, (largest + kRoom) & kExponent);
    if (largest == 0) return 0;
    return scale < kSmallestScale ? kSmallestScale : scale;
  }

  uint8_t *m_, *v_;
  float* scales_;
  int64_t first_;
  uint32_t key_;
  Floats m_scale_;
  Bits m_least_;
  Words v_least_half_;
  typename V::Ints m_largest_, v_largest_;
  Bits m_new_least_;
  Words m_new_least_half_, v_new_least_half_;
  typename V::Quad new_m_[kQuads<kCount>], new_v_[kQuads<kCount>];
};

}  // namespace pagoda
