#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/products/block_kernel.h"
#include "kernels/cpu/products/target.h"
#include "kernels/cpu/rows/subnormals.h"

// What these two cover is instantiated for types of this file alone.
PAGODA_TARGET_BEGIN("avx512f,avx512bw")
#include "kernels/cpu/products/block_lanes.h"

namespace pagoda {
namespace {

struct Avx512 {
  static constexpr int kWidth = 16, kRows = 8;
  using Vector = __m512;
  using Words [[gnu::may_alias]] = uint32_t __attribute__((vector_size(64)));
  // The compiler does not see that it is zero: it would keep one in a register that sums need.
  static Vector zero() {
    Vector v = _mm512_setzero_ps();
    asm volatile("" : "+v"(v));
    return v;
  }
  static Vector load(const float* at) { return _mm512_load_ps(at); }
  static void store(float* at, Vector v) { _mm512_store_ps(at, v); }
  static void stream(float* at, Vector v) { _mm512_stream_ps(at, v); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector broadcast(const float* at) { return _mm512_set1_ps(*at); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
};

[[gnu::noinline]] void multiply(const BlockProduct& p) { multiply_lanes<Avx512>(p); }
void write(const float* sums, float* target, int64_t stride) {
  write_lanes<Avx512>(sums, target, stride);
}
int64_t saturate(int64_t rounds) { return saturate_lanes<Avx512>(rounds); }

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

const BlockKernel* avx512_block_kernel() {
  static const BlockKernel kernel{"avx512", BlockSum::kTwoChains, StepForm::kWide,
                                  {1, 64, 128, false},
                                  enter, multiply_without_subnormals, leave, write, saturate};
  const bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  return can ? &kernel : nullptr;
}

}  // namespace pagoda
#else
#include "kernels/cpu/products/block_kernel.h"
namespace pagoda {
const BlockKernel* avx512_block_kernel() { return nullptr; }
}  // namespace pagoda
#endif
