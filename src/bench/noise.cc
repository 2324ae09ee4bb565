#include "bench/noise.h"

#include <cstring>

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

}  // namespace pagoda
