// Bytes that no drive can leave out: rates measured with zeros are too good.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pagoda {

// Fills `data` with the same noise every time. REQUIRES: bytes is a multiple of 16.
void fill_noise(std::byte* data, int64_t bytes);

}  // namespace pagoda
