#include "bench/roofs/streams.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/check.h"
#include "base/target_clones.h"

namespace pagoda {
namespace {

constexpr int64_t kParts = 8;       // streams side by side: as many as an optimizer's arrays
constexpr int64_t kLine = 8;        // doubles of a cache line
constexpr int64_t kAhead = 2 * 64;  // doubles a line is fetched ahead of its use

int64_t doubles_of(int64_t bytes) {
  CHECK(bytes % kStreamAlign == 0);
  return bytes / static_cast<int64_t>(sizeof(double));
}

using Pair = double __attribute__((vector_size(16), may_alias));

[[gnu::always_inline]] inline Pair pair_at(const double* at) {
  return *reinterpret_cast<const Pair*>(at);
}

// Past the cache, on processors that such a store is known of.
[[gnu::always_inline]] inline void put_past_cache(double* target, Pair value) {
#if defined(__SSE2__)
  _mm_stream_pd(target, value);
#else
  *reinterpret_cast<Pair*>(target) = value;
#endif
}

// Other threads then see what was put.
[[gnu::always_inline]] inline void end_of_stores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace

PAGODA_TARGET_CLONES void stream_fill(double* target, double value, int64_t bytes) {
  const int64_t n = doubles_of(bytes);
  const Pair both = {value, value};
  for (int64_t i = 0; i < n; i += 2) put_past_cache(target + i, both);
  end_of_stores();
}

PAGODA_TARGET_CLONES void stream_triad(double* target, const double* a, const double* b,
                                       double factor, int64_t bytes) {
  const int64_t n = doubles_of(bytes);
  for (int64_t i = 0; i < n; i += kLine) {
    __builtin_prefetch(a + i + kAhead);
    __builtin_prefetch(b + i + kAhead);
    for (int64_t j = i; j < i + kLine; j += 2) {
      put_past_cache(target + j, pair_at(a + j) + factor * pair_at(b + j));
    }
  }
  end_of_stores();
}

PAGODA_TARGET_CLONES double stream_sum(const double* source, int64_t bytes) {
  const int64_t part = doubles_of(bytes) / kParts;
  double sums[kParts][kLine] = {};
  for (int64_t i = 0; i < part; i += kLine) {
    for (int64_t p = 0; p < kParts; ++p) {
      const double* line = source + p * part + i;
      for (int64_t j = 0; j < kLine; ++j) sums[p][j] += line[j];
    }
  }
  double sum = 0;
  for (const auto& lanes : sums) {
    for (const double lane : lanes) sum += lane;
  }
  return sum;
}

PAGODA_TARGET_CLONES void stream_update(double* target, double factor, int64_t bytes) {
  const int64_t part = doubles_of(bytes) / kParts;
  for (int64_t i = 0; i < part; i += kLine) {
    for (int64_t p = 0; p < kParts; ++p) {
      double* line = target + p * part + i;
      __builtin_prefetch(line + kAhead, 1);
      for (int64_t j = 0; j < kLine; ++j) line[j] = factor * line[j] + 1;
    }
  }
}

}  // namespace pagoda
