// Element types that weights have in a safetensors file, and their conversion from and to fp32.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"

namespace pagoda {

enum class StoredDType : uint8_t { kF32, kBF16, kF16 };

int64_t stored_bytes(StoredDType dtype);          // of one element
const char* safetensors_name(StoredDType dtype);  // "F32", "BF16", "F16"
const char* torch_name(StoredDType dtype);        // "float32", "bfloat16", "float16"
std::optional<StoredDType> stored_dtype_of(const std::string& safetensors_name);
StoredDType stored_dtype_of(DType dtype);

// Exact. `in` holds `count` little-endian elements.
void stored_to_float(StoredDType dtype, const void* in, int64_t count, float* out);
// Rounds to BF16 as weights are rounded (bf16_round_weight), and to F16 to nearest even (too large
// a value becomes infinite). A value that stored_to_float gave comes back bit for bit.
void float_to_stored(StoredDType dtype, const float* in, int64_t count, void* out);

// Exact. MXFP4 (OCP Microscaling Formats 1.0): two numbers of 1 sign, 2 exponent and 1 fraction
// bits in a byte, the lower half first; 32 of them are multiplied by 2^(scale - 127), where 255 is
// NaN. REQUIRES: `count` is a multiple of 32.
void mxfp4_to_float(const uint8_t* numbers, const uint8_t* scales, int64_t count, float* out);

// The number of an fp8 of 1 sign, 4 exponent and 3 fraction bits (E4M3, no infinities), exact.
float fp8_to_float(uint8_t bits);

// Index of the first NaN or infinity, or -1.
int64_t first_non_finite(const float* values, int64_t count);

}  // namespace pagoda
