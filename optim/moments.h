// Adam's moments in fewer bits. A moving average of nearly 1 - beta of the new value would stand
// still if it were rounded to nearest (the new share is below half a step of 8 or 16 bits), so it
// is rounded stochastically: up with the probability that makes it right on average, by a hash of
// the element's number and a key that the caller draws per record and update. No state, so a replay
// gives the same bits. Of each 64 elements, 2 i + {0, 1, 32, 33} share a hash, that of the number
// k = (64 elements' number) * 16 + i. The m of the first takes its low bits as noise, of the second
// its high ones, and the last two do so with the hash rotated left by 6; the v of each takes what
// the m of its neighbour does.
//
// 8 bits (after Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv
// 2110.02861, with plain floats in place of their table, which vector units convert without a
// search): each block of kMomentBlock elements is divided by its largest magnitude, and what is
// left, at most 1, has 3 bits of mantissa. With F(c) the fp32 of the bits c << 20,
//   m: sign, and code c of 7 bits for F(896 + c) - F(896), where F(896) = 2^-15: evenly spaced
//      around 0, as floats above 2^-15
//   v: code c of 8 bits for F(768 + c), from 2^-31 up: what is less, 0 too, counts as that, since
//      a v of 0 would make the step boundless
// and a block of zeros has scale 0. Of each 64 codes, byte 4 i + j is that of element
// 2 i + {0, 1, 32, 33}[j]: the lanes of 32 bits of a vector that holds them then match those of
// vectors that hold two weights a lane.
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

// Each of the three below holds the moments of a stretch of a record and is used block by block:
// begin_block, then load and store for the quads of it in order, then end_block. `i` is the number
// of an element in the stretch.

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
  [[gnu::always_inline]] void load(int64_t i, typename V::Quad& m, typename V::Quad& v) const {
    m = {V::widen(V::load(m_ + i)), V::widen(V::load(m_ + i + 32))};
    v = {V::widen(V::load(v_ + i)), V::widen(V::load(v_ + i + 32))};
  }
  [[gnu::always_inline]] void store(int64_t i, const typename V::Quad& m,
                                    const typename V::Quad& v) {
    const auto noise = moment_noise(V::quad_number(first_ + i), key_);
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

// New moments wait in fp32 until their block's largest is known.
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
    v_scale_ = V::splat(scale[1]);
    m_largest_ = v_largest_ = typename V::Ints{};
  }

  [[gnu::always_inline]] void load(int64_t i, typename V::Quad& m, typename V::Quad& v) const {
    const auto m_codes = V::load(m_ + code_at(i)), v_codes = V::load(v_ + code_at(i));
    m = {{decode_m<0>(m_codes), decode_m<1>(m_codes)},
         {decode_m<2>(m_codes), decode_m<3>(m_codes)}};
    v = {{decode_v<0>(v_codes), decode_v<1>(v_codes)},
         {decode_v<2>(v_codes), decode_v<3>(v_codes)}};
  }

  [[gnu::always_inline]] void store(int64_t i, const typename V::Quad& m,
                                    const typename V::Quad& v) {
    const int64_t slot = code_at(i) % kMomentBlock / kCount / 4;
    new_m_[slot] = m;
    new_v_[slot] = v;
    m_largest_ = V::larger(m_largest_, largest(magnitudes(m.low), magnitudes(m.high)));
    v_largest_ = V::larger(v_largest_, largest(v.low, v.high));
  }

  [[gnu::always_inline]] void end_block(int64_t i) {
    float* scale = scales_ + i / kMomentBlock * 2;
    scale[0] = scale_of(m_largest_);
    scale[1] = scale_of(v_largest_);
    const auto m_factor = V::splat(factor_of(scale[0])), v_factor = V::splat(factor_of(scale[1]));
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      const int64_t code = i + slot * 4 * kCount;
      const auto noise = moment_noise(V::quad_number(first_ + element_at(code)), key_);
      const auto next = V::rotated_left(noise, 6);
      const auto low = noise & kDropped, high = noise >> 12;
      const auto next_low = next & kDropped, next_high = next >> 12;
      const auto& m = new_m_[slot];
      const auto& v = new_v_[slot];
      V::store(m_ + code, joined_m(encode_m(m.low.even, m_factor, low),
                                   encode_m(m.low.odd, m_factor, high),
                                   encode_m(m.high.even, m_factor, next_low),
                                   encode_m(m.high.odd, m_factor, next_high)));
      V::store(v_ + code, joined_v(encode_v(v.low.even, v_factor, high),
                                   encode_v(v.low.odd, v_factor, low),
                                   encode_v(v.high.even, v_factor, next_high),
                                   encode_v(v.high.odd, v_factor, next_low)));
    }
  }

 private:
  using Floats = typename V::Floats;
  using Bits = typename V::Bits;
  static constexpr int kDroppedBits = 20;  // of an fp32 mantissa, to leave 3
  static constexpr uint32_t kDropped = (1u << kDroppedBits) - 1;
  static constexpr uint32_t kLeastMBits = 896u << kDroppedBits, kLeastVBits = 768u << kDroppedBits;
  static constexpr float kLeastM = 0x1p-15f, kLeastV = 0x1p-31f;  // of those bits
  static constexpr float kSmallestScale = 0x1p-126f;  // its reciprocal is finite
  static constexpr int64_t kSlots = kMomentBlock / (4 * kCount);

  // Where the codes of the quad at element i begin, and the other way round.
  PAGODA_LANES int64_t code_at(int64_t i) { return i / 64 * 64 + i % 64 * 2; }
  PAGODA_LANES int64_t element_at(int64_t code) { return code / 64 * 64 + code % 64 / 2; }

  // Byte `j` of each lane, its lowest bit in place kDroppedBits; other bits around it.
  template <int j>
  PAGODA_LANES Bits placed(Bits codes) {
    if constexpr (8 * j < kDroppedBits) {
      return codes << (kDroppedBits - 8 * j);
    } else {
      return codes >> (8 * j - kDroppedBits);
    }
  }
  template <int j>
  [[gnu::always_inline]] Floats decode_m(Bits codes) const {
    const Floats value = V::floats((placed<j>(codes) & (0x7fu << kDroppedBits)) | kLeastMBits);
    const Bits sign = (codes << (24 - 8 * j)) & V::kSign;
    return V::floats(V::bits((value - kLeastM) * m_scale_) | sign);
  }
  template <int j>
  [[gnu::always_inline]] Floats decode_v(Bits codes) const {
    return V::floats((placed<j>(codes) & (0xffu << kDroppedBits)) | kLeastVBits) * v_scale_;
  }

  // The code in the highest byte of each lane, other bits below.
  PAGODA_LANES Bits encode_m(Floats m, Floats factor, Bits noise) {
    const Floats value = m * factor;
    const Floats shifted = V::floats(V::magnitude(value)) + kLeastM;
    // Exponents of values from 2^-15 to 1 are 0111.... in bits: what becomes the sign's bit is 1.
    return ((V::bits(shifted) + noise) << 4) & (V::bits(value) | ~V::kSign);
  }
  PAGODA_LANES Bits joined_m(Bits a, Bits b, Bits c, Bits d) {
    return (a >> 24) | ((b >> 16) & 0xff00u) | ((c >> 8) & 0xff0000u) | (d & 0xff000000u);
  }
  // The code from bit kDroppedBits on, other bits around it.
  PAGODA_LANES Bits encode_v(Floats v, Floats factor, Bits noise) {
    // Values that are not negative are in the order of their bits.
    const auto value = V::larger(V::ints(V::bits(v * factor)), V::ints(V::bits(V::splat(kLeastV))));
    return __builtin_bit_cast(Bits, value) + noise;
  }
  PAGODA_LANES Bits joined_v(Bits a, Bits b, Bits c, Bits d) {
    return ((a >> kDroppedBits) & 0xffu) | ((b >> (kDroppedBits - 8)) & 0xff00u) |
           ((c >> (kDroppedBits - 16)) & 0xff0000u) | ((d << (24 - kDroppedBits)) & 0xff000000u);
  }

  PAGODA_LANES typename V::Pair magnitudes(const typename V::Pair& pair) {
    return {V::floats(V::magnitude(pair.even)), V::floats(V::magnitude(pair.odd))};
  }
  // Of values that are not negative, whose bits are in their order.
  PAGODA_LANES typename V::Ints largest(const typename V::Pair& a, const typename V::Pair& b) {
    return V::larger(V::larger(V::ints(V::bits(a.even)), V::ints(V::bits(a.odd))),
                     V::larger(V::ints(V::bits(b.even)), V::ints(V::bits(b.odd))));
  }
  PAGODA_LANES float scale_of(typename V::Ints largest) {
    const float scale = __builtin_bit_cast(float, V::largest_lane(largest));
    return scale > 0 && scale < kSmallestScale ? kSmallestScale : scale;
  }
  PAGODA_LANES float factor_of(float scale) {
    return 1.0f / (scale > 0 ? scale : 1.0f);
  }

  uint8_t *m_, *v_;
  float* scales_;
  int64_t first_;
  uint32_t key_;
  Floats m_scale_, v_scale_;
  typename V::Ints m_largest_, v_largest_;
  typename V::Quad new_m_[kSlots], new_v_[kSlots];
};

}  // namespace pagoda
