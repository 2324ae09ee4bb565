#include "optim/moments.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/target_clones.h"

namespace pagoda {
namespace {

constexpr int kDroppedBits = 20;  // of an fp32 mantissa, to leave 3
constexpr uint32_t kFirst = (112u << 3) - 1, kSecond = (96u << 3) - 1;  // c0 of m and of v
constexpr float kSmallestFirst = 0x1p-15f, kSmallestSecond = 0x1p-31f;

// An integer hash of 32 bits with low bias (Wellons 2018, "Prospecting for Hash Functions").
inline uint32_t noise(uint32_t key, int64_t element) {
  uint32_t x = static_cast<uint32_t>(element) ^ key;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

inline float largest_of(const float* in, int64_t n) {
  uint32_t largest = 0;  // magnitudes order as their bits do
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(in[i]) & 0x7fffffffu);
  }
  return std::bit_cast<float>(largest);
}

}  // namespace

PAGODA_TARGET_CLONES void widen_moments(const bf16* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_float(in[i]);
}

PAGODA_TARGET_CLONES void round_moments(const float* in, int64_t n, uint32_t key, int64_t first,
                                        bf16* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(in[i]);
    out[i].bits = static_cast<uint16_t>((bits + (noise(key, first + i) >> 16)) >> 16);
  }
}

PAGODA_TARGET_CLONES void decode_first_moments(const uint8_t* codes, float scale, int64_t n,
                                               float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t code = codes[i] & 0x7fu;
    const uint32_t sign = (codes[i] & 0x80u) << 24;
    const uint32_t bits = code == 0 ? 0 : (code + kFirst) << kDroppedBits;
    out[i] = std::bit_cast<float>(bits | sign) * scale;
  }
}

PAGODA_TARGET_CLONES void decode_second_moments(const uint8_t* codes, float scale, int64_t n,
                                                float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t code = codes[i];
    const uint32_t bits = code == 0 ? 0 : (code + kSecond) << kDroppedBits;
    out[i] = std::bit_cast<float>(bits) * scale;
  }
}

PAGODA_TARGET_CLONES float encode_first_moments(const float* in, int64_t n, uint32_t key,
                                                int64_t first, uint8_t* codes) {
  const float scale = largest_of(in, n);
  const float divisor = scale > 0 ? scale : 1.0f;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t random = noise(key, first + i);
    const float value = in[i] / divisor;
    const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
    const uint32_t code = ((bits + (random >> 12)) >> kDroppedBits) - kFirst;
    const bool up = std::fabs(value) > static_cast<float>(random >> 8) * 0x1p-24f * kSmallestFirst;
    const uint32_t small = up ? 1 : 0;
    const uint32_t sign = std::bit_cast<uint32_t>(value) >> 24 & 0x80u;
    codes[i] = static_cast<uint8_t>((std::fabs(value) < kSmallestFirst ? small : code) | sign);
  }
  return scale;
}

PAGODA_TARGET_CLONES float encode_second_moments(const float* in, int64_t n, uint32_t key,
                                                 int64_t first, uint8_t* codes) {
  const float scale = largest_of(in, n);
  const float divisor = scale > 0 ? scale : 1.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float value = in[i] / divisor;
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t code = ((bits + (noise(key, first + i) >> 12)) >> kDroppedBits) - kSecond;
    const uint32_t small = in[i] > 0 ? 1 : 0;
    codes[i] = static_cast<uint8_t>(value < kSmallestSecond ? small : code);
  }
  return scale;
}

}  // namespace pagoda
