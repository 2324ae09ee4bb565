#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/products/block_kernel.h"
#include "kernels/cpu/products/target.h"
#include "kernels/cpu/rows/subnormals.h"

// What these two cover is instantiated for types of this file alone.
PAGODA_TARGET_BEGIN("avx2,fma")
#include "kernels/cpu/products/block_lanes.h"

namespace pagoda {
namespace {

struct Avx2 {
  static constexpr int kWidth = 8, kRows = 4;
  using Vector = __m256;
  using Words [[gnu::may_alias]] = uint32_t __attribute__((vector_size(32)));
  // The compiler does not see that it is zero: it would keep one in a register that sums need.
  static Vector zero() {
    Vector v = _mm256_setzero_ps();
    asm volatile("" : "+x"(v));
    return v;
  }
  static Vector load(const float* at) { return _mm256_load_ps(at); }
  static void store(float* at, Vector v) { _mm256_store_ps(at, v); }
  static void stream(float* at, Vector v) { _mm256_stream_ps(at, v); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector broadcast(const float* at) { return _mm256_broadcast_ss(at); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
};

[[gnu::noinline]] void multiply(const BlockProduct& p) { multiply_lanes<Avx2>(p); }
void write(const float* sums, float* target, int64_t stride) {
  write_lanes<Avx2>(sums, target, stride);
}
int64_t saturate(int64_t rounds) { return saturate_lanes<Avx2>(rounds); }

}  // namespace
}  // namespace pagoda
PAGODA_TARGET_END

namespace pagoda {
namespace {

void enter() {}
void leave() { _mm_sfence(); }

void multiply_without_subnormals(const BlockProduct& p) {
  const WithoutSubnormals guard;
  multiply(p);
}

}  // namespace

const BlockKernel* avx2_block_kernel() {
  static const BlockKernel kernel{"avx2", BlockSum::kTwoChains, StepForm::kWide,
                                  {1, 64, 128, false},
                                  enter, multiply_without_subnormals, leave, write, saturate};
  const bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return can ? &kernel : nullptr;
}

}  // namespace pagoda
#else
#include "kernels/cpu/products/block_kernel.h"
namespace pagoda {
const BlockKernel* avx2_block_kernel() { return nullptr; }
}  // namespace pagoda
#endif
