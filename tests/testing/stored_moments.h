// Moments of a state page one element at a time, after the text of optim/moments.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "optim/state_format.h"

namespace pagoda::testing {

enum class Moment : uint8_t { kFirst, kSecond };

inline uint32_t hashed(uint32_t number, uint32_t key) {
  uint32_t x = number ^ key;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}
// `bits` of noise for a moment of an element; 16 hashes serve `group` elements.
inline uint32_t noise_of(Moment moment, uint32_t element, uint32_t key, int bits, uint32_t group) {
  const int turn = (element % 64 < 32 ? 0 : 6) + (element % group < 64 ? 0 : 3);
  const uint32_t noise = std::rotl(hashed(element / group * 16 + element % 32 / 2, key), turn);
  const bool low = (element % 2 == 0) == (moment == Moment::kFirst);
  return low ? noise & ((1u << bits) - 1) : noise >> (32 - bits);
}

class StoredMoments {
 public:
  StoredMoments(const StateLayout& layout, std::byte* state) : layout_(layout), state_(state) {}

  float get(Moment moment, int64_t i) const {
    switch (layout_.format) {
      case StateFormat::kFp32:
        return read<float>(at(moment) + 4 * i);
      case StateFormat::kBf16:
        return to_float(bf16{read<uint16_t>(at(moment) + 2 * i)});
      case StateFormat::k8Bit:
        return decode(moment, read<uint8_t>(at(moment) + code_at(i))) *
               read<float>(scale_at(moment, i));
    }
    return 0;
  }

  // A block of moments, the last of a record maybe shorter; `first` is a multiple of kMomentBlock.
  void set(Moment moment, int64_t first, int64_t n, uint32_t key, const float* values) {
    float scale = 0;
    for (int64_t k = 0; k < n; ++k) scale = std::max(scale, std::fabs(values[k]));
    if (scale > 0) {
      const float power = std::ldexp(1.0f, std::ilogb(scale));
      scale = std::max(scale / power < 1.875f - 0x1p-13f ? power : 2 * power, 0x1p-95f);
    }
    if (layout_.format == StateFormat::k8Bit) write(scale_at(moment, first), scale);
    const float factor = 1.0f / (scale > 0 ? scale : 1.0f);
    for (int64_t i = first; i < first + n; ++i) {
      const float value = values[i - first];
      const auto element = static_cast<uint32_t>(i);
      if (layout_.format == StateFormat::kFp32) {
        write(at(moment) + 4 * i, value);
      } else if (layout_.format == StateFormat::kBf16) {
        const uint32_t noise = noise_of(moment, element, key, 16, 64);
        const uint32_t bits = std::bit_cast<uint32_t>(value) + noise;
        write(at(moment) + 2 * i, static_cast<uint16_t>(bits >> 16));
      } else {
        write(at(moment) + code_at(i),
              encode(moment, value * factor, noise_of(moment, element, key, 20, 128)));
      }
    }
  }

 private:
  static int64_t code_at(int64_t i) {
    const int64_t j = i % 32;
    return i / 64 * 64 + j / 2 * 4 + j % 2 * 2 + i % 64 / 32;
  }
  static float decode(Moment moment, uint8_t code) {
    if (moment == Moment::kSecond) return std::bit_cast<float>((768u + code) << 20);
    const float magnitude = std::bit_cast<float>((896u + (code & 127u)) << 20) - 0x1p-15f;
    return code & 128u ? -magnitude : magnitude;
  }
  static uint8_t encode(Moment moment, float value, uint32_t noise) {
    if (moment == Moment::kSecond) {
      const auto bits = std::bit_cast<uint32_t>(std::max(value, 0x1p-31f));
      return static_cast<uint8_t>(((bits + noise) >> 20) - 768);
    }
    const auto bits = std::bit_cast<uint32_t>(std::fabs(value) + 0x1p-15f);
    const uint32_t code = ((bits + noise) >> 20) - 896;
    return static_cast<uint8_t>(code | (std::signbit(value) ? 128u : 0u));
  }

  std::byte* at(Moment moment) const {
    return state_ + (moment == Moment::kFirst ? layout_.m_at : layout_.v_at);
  }
  std::byte* scale_at(Moment moment, int64_t i) const {
    return state_ + layout_.scales_at + 8 * (i / kMomentBlock) +
           (moment == Moment::kFirst ? 0 : 4);
  }
  template <typename T>
  static T read(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  template <typename T>
  static void write(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof value);
  }

  StateLayout layout_;
  std::byte* state_;
};

}  // namespace pagoda::testing
