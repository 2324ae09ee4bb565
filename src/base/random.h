// Stateless randomness: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC'11). Nothing here has state, so a resumed run draws the same numbers as an uninterrupted
// one.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace pagoda {

// The purposes that random numbers are drawn for; a purpose is part of the key so that streams
// never overlap. Append only: the values are part of the meaning of a seed.
enum class RandomPurpose : uint32_t {
  kInit = 1, kShuffle = 2, kFaults = 3, kTest = 4, kUpcycle = 5, kSample = 6, kMoments = 7,
  kNoise = 8
};

// 128 random bits for counter (a, b) under (seed, purpose).
std::array<uint32_t, 4> philox(uint64_t seed, RandomPurpose purpose, uint64_t a, uint64_t b);

// 16 hexadecimal digits from the system that nobody can guess, for names that must differ.
std::string random_digits();

// Uniform in (0, 1], never 0.
double random_unit(uint64_t seed, RandomPurpose purpose, uint64_t a, uint64_t b);

// Standard normal (Box-Muller on one Philox block).
float random_normal(uint64_t seed, RandomPurpose purpose, uint64_t a, uint64_t b);

// A pseudo-random permutation of [0, n): returns the image of i under (seed, epoch). A balanced
// Feistel network over the next power of four, cycle-walked into [0, n). REQUIRES: i < n.
uint64_t random_permutation(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i);

}  // namespace pagoda
