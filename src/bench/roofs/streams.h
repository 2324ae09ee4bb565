// The streams that memory is measured with, each on one thread: after McCalpin's STREAM, with
// stores that bypass the cache where a large array is only written (no line is read to be
// overwritten), and the two that matter to an optimizer: several streams read at once, and updated
// in place.
//
// REQUIRES, of all: arrays aligned to kStreamAlign and a multiple of it long.
#pragma once

#include <cstdint>

namespace pagoda {

inline constexpr int64_t kStreamAlign = 4096;

// target = value.
void stream_fill(double* target, double value, int64_t bytes);
// target = a + factor * b.
void stream_triad(double* target, const double* a, const double* b, double factor, int64_t bytes);
// The sum, read as kParts streams side by side.
double stream_sum(const double* source, int64_t bytes);
// target = factor * target + 1, as kParts streams side by side.
void stream_update(double* target, double factor, int64_t bytes);

// Keeps the compiler from leaving out what has no other use.
inline void use_result(double value) { asm volatile("" : : "x"(value) : "memory"); }

}  // namespace pagoda
