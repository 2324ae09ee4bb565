// Integer arithmetic that refuses silently wrong results, and sizes in bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "base/check.h"

namespace pagoda {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

// Alignment of every page, slot and file extent. Direct I/O needs at most this on every device
// this program accepts; storage probes the real requirement.
inline constexpr int64_t kIoAlign = 4096;

constexpr int64_t div_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align_up(int64_t a, int64_t alignment) {
  return div_ceil(a, alignment) * alignment;
}

// Converts an integer; a value that does not fit is a bug.
template <typename To, typename From>
To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  const To result = static_cast<To>(value);
  CHECK(static_cast<From>(result) == value && ((result < To{}) == (value < From{})));
  return result;
}

// a * b, or -1 when the product of two non-negative numbers overflows int64.
constexpr int64_t checked_mul(int64_t a, int64_t b) {
  if (a < 0 || b < 0) return -1;
  if (a != 0 && b > std::numeric_limits<int64_t>::max() / a) return -1;
  return a * b;
}

// "1.50 GiB", "4096 B".
std::string format_bytes(int64_t bytes);
// The same, rounded up, for sizes that must be enough when the user types them back.
std::string format_bytes_up(int64_t bytes);

}  // namespace pagoda
