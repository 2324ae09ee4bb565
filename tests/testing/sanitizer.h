// Tells which sanitizer a test is built with. Under one a test takes many times as long, so long
// tests do less there.
#pragma once

#include <cstddef>
#include <vector>

// GCC defines these; clang does not.
#if defined(__clang__)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

namespace pagoda {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderThreadSanitizer = true;
#else
inline constexpr bool kUnderThreadSanitizer = false;
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kUnderAddressSanitizer = true;
#else
inline constexpr bool kUnderAddressSanitizer = false;
#endif

inline constexpr bool kUnderSanitizer = kUnderThreadSanitizer || kUnderAddressSanitizer;

// Returns one in so many of the cases under a sanitizer, for which any of them has the threads and
// the memory of all, and elsewhere all of them.
template <typename Case, size_t kCount>
std::vector<Case> fewer_when_sanitized(const Case (&all)[kCount], size_t one_in) {
  std::vector<Case> some;
  for (size_t i = 0; i < kCount; i += kUnderSanitizer ? one_in : 1) some.push_back(all[i]);
  return some;
}

}  // namespace pagoda
