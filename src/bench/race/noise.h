// Random bytes, which no drive can compress: rates measured with zeros are too good.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace pagoda {

// Fills `data` with the same noise every time. REQUIRES: bytes is a multiple of 16.
void fill_noise(std::byte* data, int64_t bytes);

// Noise for arithmetic: values of 2^-7 to 2^-6 in magnitude, of either sign, which repeat. No
// square of one is denormal, and products of a model stay finite.
void fill_values(bf16* values, int64_t count);

}  // namespace pagoda
