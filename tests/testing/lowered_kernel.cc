#include "tests/testing/lowered_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/products/target.h"
#include "kernels/cpu/rows/subnormals.h"

// What these two cover is instantiated for types of this file alone.
PAGODA_TARGET_BEGIN("avx2,fma")
#include "kernels/cpu/products/block_lanes.h"

namespace pagoda {
namespace {

struct Lowered {
  static constexpr int kWidth = 16, kRows = 8;
  using Vector = float __attribute__((vector_size(64)));
  using Words [[gnu::may_alias]] = uint32_t __attribute__((vector_size(64)));
  static Vector zero() { return Vector{}; }
  static Vector load(const float* at) {
    Vector v;
    std::memcpy(&v, at, sizeof v);
    return v;
  }
  static void store(float* at, Vector v) { std::memcpy(at, &v, sizeof v); }
  static void stream(float* at, Vector v) { store(at, v); }
  static Vector add(Vector a, Vector b) { return a + b; }
  static Vector broadcast(const float* at) { return Vector{} + *at; }
  static Vector multiply_add(Vector a, Vector b, Vector c) {
    for (int half = 0; half < 2; ++half) {
      __m256 x, y, z;
      std::memcpy(&x, reinterpret_cast<const char*>(&a) + 32 * half, sizeof x);
      std::memcpy(&y, reinterpret_cast<const char*>(&b) + 32 * half, sizeof y);
      std::memcpy(&z, reinterpret_cast<const char*>(&c) + 32 * half, sizeof z);
      z = _mm256_fmadd_ps(x, y, z);
      std::memcpy(reinterpret_cast<char*>(&c) + 32 * half, &z, sizeof z);
    }
    return c;
  }
};

[[gnu::noinline]] void multiply(const BlockProduct& p) { multiply_lanes<Lowered>(p); }
void write(const float* sums, float* target, int64_t stride) {
  write_lanes<Lowered>(sums, target, stride);
}

}  // namespace
}  // namespace pagoda
PAGODA_TARGET_END

namespace pagoda {
namespace {

void enter() {}
void leave() {}
int64_t saturate(int64_t rounds) { return rounds; }  // nothing is measured with it

void multiply_without_subnormals(const BlockProduct& p) {
  const WithoutSubnormals guard;
  multiply(p);
}

}  // namespace

const BlockKernel* lowered_block_kernel() {
  static const BlockKernel kernel{"sixteen lanes on avx2", BlockSum::kTwoChains, StepForm::kWide,
                                  {1, 64, 128, false},
                                  enter, multiply_without_subnormals, leave, write, saturate};
  const bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return can ? &kernel : nullptr;
}

}  // namespace pagoda
#else
namespace pagoda {
const BlockKernel* lowered_block_kernel() { return nullptr; }
}  // namespace pagoda
#endif
