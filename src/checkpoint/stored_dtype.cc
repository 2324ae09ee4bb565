#include "checkpoint/stored_dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace pagoda {

static_assert(std::endian::native == std::endian::little, "files are read in place");

int64_t stored_bytes(StoredDType dtype) { return dtype == StoredDType::kF32 ? 4 : 2; }

const char* safetensors_name(StoredDType dtype) {
  switch (dtype) {
    case StoredDType::kF32:
      return "F32";
    case StoredDType::kBF16:
      return "BF16";
    case StoredDType::kF16:
      return "F16";
  }
  return "";
}

const char* torch_name(StoredDType dtype) {
  switch (dtype) {
    case StoredDType::kF32:
      return "float32";
    case StoredDType::kBF16:
      return "bfloat16";
    case StoredDType::kF16:
      return "float16";
  }
  return "";
}

std::optional<StoredDType> stored_dtype_of(const std::string& name) {
  for (const auto dtype : {StoredDType::kF32, StoredDType::kBF16, StoredDType::kF16}) {
    if (name == safetensors_name(dtype)) return dtype;
  }
  return std::nullopt;
}

StoredDType stored_dtype_of(DType dtype) {
  return dtype == DType::kF32 ? StoredDType::kF32 : StoredDType::kBF16;
}

namespace {

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits.
float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

uint16_t float_to_half(float v) {
  const uint32_t w = std::bit_cast<uint32_t>(v);
  const uint32_t sign = (w >> 16) & 0x8000u, magnitude = w & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal, a multiple of 2^-24
    const float multiple = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(multiple));
  }
  const uint32_t rounded = (magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t half = rounded - (112u << 10);
  return static_cast<uint16_t>(sign | (half < 0x7c00u ? half : 0x7c00u));
}

}  // namespace

void stored_to_float(StoredDType dtype, const void* in, int64_t count, float* out) {
  if (dtype == StoredDType::kF32) {
    std::memcpy(out, in, static_cast<size_t>(count) * 4);
    return;
  }
  const char* bytes = static_cast<const char*>(in);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, 2);
    out[i] = dtype == StoredDType::kBF16 ? to_float(bf16{bits}) : half_to_float(bits);
  }
}

void float_to_stored(StoredDType dtype, const float* in, int64_t count, void* out) {
  if (dtype == StoredDType::kF32) {
    std::memcpy(out, in, static_cast<size_t>(count) * 4);
    return;
  }
  char* bytes = static_cast<char*>(out);
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits =
        dtype == StoredDType::kBF16 ? bf16_round_weight(in[i]).bits : float_to_half(in[i]);
    std::memcpy(bytes + 2 * i, &bits, 2);
  }
}

void mxfp4_to_float(const uint8_t* numbers, const uint8_t* scales, int64_t count, float* out) {
  constexpr int64_t kBlock = 32;
  constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (int64_t block = 0; block < count / kBlock; ++block) {
    const uint8_t scale = scales[block];
    float values[16];
    for (int i = 0; i < 16; ++i) {
      const float magnitude = scale == 255 ? std::numeric_limits<float>::quiet_NaN()
                                           : std::ldexp(kMagnitudes[i % 8], scale - 127);
      values[i] = i < 8 ? magnitude : -magnitude;
    }
    for (int64_t i = 0; i < kBlock / 2; ++i) {
      const uint8_t two = numbers[block * kBlock / 2 + i];
      *out++ = values[two & 15u];
      *out++ = values[two >> 4];
    }
  }
}

float fp8_to_float(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  float magnitude = std::ldexp(static_cast<float>(fraction), -9);
  if (exponent > 0) magnitude = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  if (exponent == 15 && fraction == 7) magnitude = std::numeric_limits<float>::quiet_NaN();
  return bits < 128 ? magnitude : -magnitude;
}

int64_t first_non_finite(const float* values, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000u;
  bool found = false;
  for (int64_t i = 0; i < count; ++i) {
    found |= (std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent;
  }
  if (!found) return -1;
  int64_t i = 0;
  while ((std::bit_cast<uint32_t>(values[i]) & kExponent) != kExponent) ++i;
  return i;
}

}  // namespace pagoda
