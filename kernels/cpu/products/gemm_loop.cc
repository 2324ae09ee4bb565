// gemm.h as a plain blocked loop, built when oneDNN is off: for sanitizers and for checking the
// other. Sums run over k in order, one multiply and one add each, so the bits are the same on every
// ISA.
#include "base/bytes.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/rows/row_math.h"
#include "kernels/cpu/rows/scratch.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

constexpr int64_t kRowsAtOnce = 4;
constexpr int64_t kColsAtOnce = 2 * kLanes;

struct Block {
  Vec sum[kRowsAtOnce][2];
};

// Four rows by 32 columns of C in registers. a: row stride k; b: row stride ldb.
PAGODA_INLINE void multiply_block(int64_t k, const float* a, const float* b, int64_t ldb,
                                  Block& block) {
  block = Block{};
  for (int64_t p = 0; p < k; ++p) {
    const Vec b0 = load(b + p * ldb), b1 = load(b + p * ldb + kLanes);
    for (int64_t r = 0; r < kRowsAtOnce; ++r) {
      block.sum[r][0] += a[r * k + p] * b0;
      block.sum[r][1] += a[r * k + p] * b1;
    }
  }
}

PAGODA_INLINE void store_block(const Block& block, int64_t cols, int64_t ldc, bool accumulate,
                               float* c) {
  for (int64_t r = 0; r < kRowsAtOnce; ++r) {
    for (int64_t half = 0; half < 2 && half * kLanes < cols; ++half) {
      const int64_t rest = cols - half * kLanes;
      const int64_t count = rest < kLanes ? rest : kLanes;
      float* out = c + r * ldc + half * kLanes;
      Vec v = block.sum[r][half];
      if (accumulate) v += load_lanes(out, count);
      store_lanes(out, v, count);
    }
  }
}

PAGODA_TARGET_CLONES void multiply_rows(int64_t m, int64_t n, int64_t k, const float* a,
                                        const float* b, float* c, bool accumulate) {
  const int64_t ldb = (n + kColsAtOnce - 1) / kColsAtOnce * kColsAtOnce;
  for (int64_t col = 0; col < n; col += kColsAtOnce) {
    for (int64_t row = 0; row < m; row += kRowsAtOnce) {
      Block block;
      multiply_block(k, a + row * k, b + col, ldb, block);
      store_block(block, n - col, n, accumulate, c + row * n + col);
    }
  }
}

float element(DType dt, const void* p, int64_t i) {
  return dt == DType::kF32 ? static_cast<const float*>(p)[i]
                           : to_float(static_cast<const bf16*>(p)[i]);
}

}  // namespace

int64_t gemm_packed_bytes(DType, int64_t k, int64_t n) {
  return k * align_up(n, kColsAtOnce) * int64_t{sizeof(float)};
}

void gemm_pack(DType dt, const void* b, int64_t ldb, bool transposed, int64_t k, int64_t n,
               void* packed) {
  float* out = static_cast<float*>(packed);
  const int64_t width = align_up(n, kColsAtOnce);
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t j = 0; j < width; ++j) {
      const int64_t at = transposed ? j * ldb + p : p * ldb + j;
      out[p * width + j] = j < n ? element(dt, b, at) : 0.0f;
    }
  }
}

void gemm_multiply(DType dt, int64_t m, int64_t n, int64_t k, const void* a, const void* packed,
                   float* c, bool accumulate) {
  const float* left = static_cast<const float*>(a);
  if (dt == DType::kBF16) {
    float* wide = scratch_floats(Scratch::kGemmWiden, kGemmRows * k);
    widen(static_cast<const bf16*>(a), align_up(m, kRowsAtOnce) * k, wide);
    left = wide;
  }
  multiply_rows(m, n, k, left, static_cast<const float*>(packed), c, accumulate);
}

std::string gemm_build() { return "built-in loop"; }
std::string gemm_name() { return "loop"; }

}  // namespace pagoda
