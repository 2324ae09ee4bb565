// Element types of tensors and the bf16 conversions. Two roundings exist on purpose:
//  - bf16_round: to nearest, ties to even; activations and gradients (what PyTorch does).
//  - bf16_round_weight: to nearest, ties away from zero; weights made from the fp32 master, because
//    then (weight, signed 16-bit remainder) is an exactly invertible split of the master.
#pragma once

#include <bit>
#include <cstdint>

#include "base/check.h"

namespace pagoda {

enum class DType : uint8_t { kF32, kBF16 };

constexpr int64_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
constexpr const char* dtype_name(DType dtype) { return dtype == DType::kF32 ? "fp32" : "bf16"; }

struct bf16 {
  uint16_t bits;
};

inline float to_float(float v) { return v; }
inline float to_float(bf16 v) { return std::bit_cast<float>(uint32_t{v.bits} << 16); }

inline bf16 bf16_round(float v) {
  const uint32_t w = std::bit_cast<uint32_t>(v);
  if ((w & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((w >> 16) | 0x40u)};  // NaN
  return {static_cast<uint16_t>((w + 0x7fffu + ((w >> 16) & 1u)) >> 16)};
}

inline bf16 bf16_round_weight(float v) {
  const uint32_t w = std::bit_cast<uint32_t>(v);
  if ((w & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((w >> 16) | 0x40u)};  // NaN
  return {static_cast<uint16_t>((w + 0x8000u) >> 16)};
}

// The difference of a finite master to its rounded weight, in units of the master's last place.
// Below, weight and remainder are joined again, exactly.
inline int16_t weight_remainder(float v) {
  const uint32_t w = std::bit_cast<uint32_t>(v);
  return static_cast<int16_t>(static_cast<uint16_t>(w));
}
inline float join_weight(bf16 weight, int16_t remainder) {
  return std::bit_cast<float>((uint32_t{weight.bits} << 16) + static_cast<uint32_t>(remainder));
}

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::kBF16;
};

}  // namespace pagoda
