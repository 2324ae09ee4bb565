#include "bench/race/noise.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/random.h"

namespace pagoda {

void fill_noise(std::byte* data, int64_t bytes) {
  CHECK(bytes % 16 == 0);
  for (int64_t i = 0; i < bytes / 16; ++i) {
    const auto block = philox(0, RandomPurpose::kNoise, static_cast<uint64_t>(i), 0);
    std::memcpy(data + 16 * i, block.data(), sizeof block);
  }
}

void fill_values(bf16* values, int64_t count) {
  constexpr int64_t kTile = (1 << 16) + 8;  // rows of weights do not begin alike
  std::vector<bf16> tile(kTile);
  fill_noise(reinterpret_cast<std::byte*>(tile.data()), kTile * 2);
  for (bf16& value : tile) value.bits = static_cast<uint16_t>((value.bits & 0x807fu) | 0x3c00u);
  for (int64_t i = 0; i < count; i += kTile) {
    std::memcpy(values + i, tile.data(), static_cast<size_t>(std::min(kTile, count - i)) * 2);
  }
}

}  // namespace pagoda
