#include "base/random.h"

#include <sys/random.h>

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace pagoda {

std::array<uint32_t, 4> philox(uint64_t seed, RandomPurpose purpose, uint64_t a, uint64_t b) {
  constexpr uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  // The purpose is folded into the key's high word; seeds use the low word and the rest by xor.
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32) ^ (static_cast<uint32_t>(purpose) * 0x85EBCA6Bu);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),
                               static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kMul0} * c[0];
    const uint64_t p1 = uint64_t{kMul1} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

namespace {
double unit(uint32_t hi, uint32_t lo) {
  const uint64_t bits = (uint64_t{hi} << 32 | lo) >> 11;
  return (static_cast<double>(bits) + 1.0) * 0x1p-53;
}
}  // namespace

std::string random_digits() {
  uint64_t bits = 0;
  CHECK(::getrandom(&bits, sizeof bits, 0) == sizeof bits, "the system has no random numbers");
  return strf("%016llx", (unsigned long long)bits);
}

double random_unit(uint64_t seed, RandomPurpose purpose, uint64_t a, uint64_t b) {
  const auto r = philox(seed, purpose, a, b);
  return unit(r[0], r[1]);
}

float random_normal(uint64_t seed, RandomPurpose purpose, uint64_t a, uint64_t b) {
  const auto r = philox(seed, purpose, a, b);
  const double radius = std::sqrt(-2.0 * std::log(unit(r[0], r[1])));
  return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * unit(r[2], r[3])));
}

uint64_t random_permutation(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i) {
  CHECK(i < n);
  int half_bits = 1;
  while (half_bits < 31 && (uint64_t{1} << (2 * half_bits)) < n) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  constexpr int kRounds = 6;
  uint64_t x = i;
  do {
    uint64_t left = x >> half_bits, right = x & mask;
    for (int round = 0; round < kRounds; ++round) {
      const auto r = philox(seed, RandomPurpose::kShuffle, right,
                            epoch << 8 | static_cast<uint64_t>(round));
      const uint64_t next = left ^ ((uint64_t{r[0]} << 32 | r[1]) & mask);
      left = right;
      right = next;
    }
    x = left << half_bits | right;
  } while (x >= n);
  return x;
}

}  // namespace pagoda
