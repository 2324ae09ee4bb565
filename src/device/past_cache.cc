#include "device/past_cache.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstring>

#include "base/bytes.h"

namespace pagoda {
namespace {

constexpr int64_t kSmallestBytes = 256 * kKiB;  // below, what is copied may well be used at once
constexpr int64_t kStretch = 4096;
constexpr int64_t kStretches = 4;
constexpr int64_t kLine = 64;
constexpr int64_t kAhead = 4 * kLine;  // how far before its use a line is asked for

// Stores past the cache, on processors with a known store of this kind.
void copy_line(std::byte* target, const std::byte* source) {
#if defined(__SSE2__)
  auto* to = reinterpret_cast<__m128i*>(target);
  const auto* from = reinterpret_cast<const __m128i*>(source);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
#else
  std::memcpy(target, source, kLine);
#endif
}

// Call before another thread is told that the bytes are there.
void end_of_stores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace

void copy_past_cache(void* target, const void* source, int64_t bytes) {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  int64_t done = 0;
  if (bytes >= kSmallestBytes && reinterpret_cast<uintptr_t>(to) % kLine == 0) {
    for (; done + kStretches * kStretch <= bytes; done += kStretches * kStretch) {
      for (int64_t line = done; line < done + kStretch; line += kLine) {
        for (int64_t s = 0; s < kStretches; ++s) {
          const int64_t place = line + s * kStretch;
          __builtin_prefetch(from + place + kAhead);
          copy_line(to + place, from + place);
        }
      }
    }
    end_of_stores();
  }
  if (done < bytes) std::memcpy(to + done, from + done, static_cast<size_t>(bytes - done));
}

}  // namespace pagoda
