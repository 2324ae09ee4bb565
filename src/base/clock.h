// The one clock that durations and orders are taken from.
#pragma once

#include <chrono>
#include <cstdint>

namespace pagoda {

// Microseconds since some moment before the program began. Never goes back.
inline int64_t monotonic_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace pagoda
