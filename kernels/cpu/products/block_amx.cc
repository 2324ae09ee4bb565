#include "kernels/cpu/products/block_kernel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "kernels/cpu/products/block_write.h"

#define PAGODA_AMX __attribute__((target("amx-tile,amx-bf16")))

namespace pagoda {
namespace {

constexpr int64_t kRowBytes = 64;  // of a tile

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

constexpr TileConfig all_tiles() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kRowBytes;
    config.rows[tile] = kTileSide;
  }
  return config;
}

// GCC 12 tells its optimizer that the instruction reads 8 bytes of the 64: written on the stack,
// the rest would be left out, and the next instruction on tiles be an illegal one.
constexpr TileConfig kAllTiles = all_tiles();

PAGODA_AMX void enter() { _tile_loadconfig(&kAllTiles); }

PAGODA_AMX void leave() {
  _tile_release();
  _mm_sfence();
}

// Sums of the tiles there are: the lower two only if `kTall`, the right two only if `kWide`.
template <bool kTall, bool kWide>
PAGODA_AMX inline void begin_sums(const BlockProduct& p) {
  if (!p.add) {
    _tile_zero(0);
    if (kWide) _tile_zero(1);
    if (kTall) _tile_zero(2);
    if (kTall && kWide) _tile_zero(3);
    return;
  }
  _tile_loadd(0, p.sums, kRowBytes);
  if (kWide) _tile_loadd(1, p.sums + 256, kRowBytes);
  if (kTall) _tile_loadd(2, p.sums + 512, kRowBytes);
  if (kTall && kWide) _tile_loadd(3, p.sums + 768, kRowBytes);
}

template <bool kTall, bool kWide>
PAGODA_AMX inline void end_sums(const BlockProduct& p) {
  _tile_stored(0, p.sums, kRowBytes);
  if (kWide) _tile_stored(1, p.sums + 256, kRowBytes);
  if (kTall) _tile_stored(2, p.sums + 512, kRowBytes);
  if (kTall && kWide) _tile_stored(3, p.sums + 768, kRowBytes);
}

template <bool kTall, bool kWide>
PAGODA_AMX void multiply_tiles(const BlockProduct& p) {
  begin_sums<kTall, kWide>(p);
  const std::byte *left = p.left, *right = p.right;
  const int64_t stride = p.row_stride;
  for (int64_t s = 0; s < p.steps; ++s) {
    _tile_loadd(4, left, stride);
    _tile_loadd(6, right, kRowBytes);
    ask_for(p.ahead, s);
    if (kWide) _tile_loadd(7, right + kTileBytes, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if (kTall) _tile_loadd(5, left + p.tile_stride, stride);
    if (kWide) _tile_dpbf16ps(1, 4, 7);
    if (kTall) _tile_dpbf16ps(2, 5, 6);
    if (kTall && kWide) _tile_dpbf16ps(3, 5, 7);
    left += p.step_stride;
    right += kStepBytes;
  }
  end_sums<kTall, kWide>(p);
}

void multiply(const BlockProduct& p) {
  if (p.rows > kTileSide) {
    p.cols > kTileSide ? multiply_tiles<true, true>(p) : multiply_tiles<true, false>(p);
  } else {
    p.cols > kTileSide ? multiply_tiles<false, true>(p) : multiply_tiles<false, false>(p);
  }
}

PAGODA_AMX int64_t saturate(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return rounds * 2 * kBlock * kBlock * kBlock;
}

// CPUID leaf 7: EDX bits 22 (AMX-BF16) and 24 (AMX-TILE). Linux gives a process, all its threads,
// the tile registers when one of them asks for state component 18 (ARCH_REQ_XCOMP_PERM).
bool granted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if (!__builtin_cpu_supports("avx512f")) return false;
  if ((d >> 22 & 1u) == 0 || (d >> 24 & 1u) == 0) return false;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return true;
  log_warn(strf("the processor has AMX, but the system does not grant it (%s): slower kernels "
                "compute products, with the same bits", std::strerror(errno)));
  return false;
}

}  // namespace

const BlockKernel* amx_block_kernel() {
  static const BlockKernel kernel{"amx", BlockSum::kTwoChains, StepForm::kPairs,
                                  {2, 64, 128, false},
                                  enter, multiply, leave, write_sums, saturate};
  static const bool can = granted();
  return can ? &kernel : nullptr;
}

}  // namespace pagoda
#else
namespace pagoda {
const BlockKernel* amx_block_kernel() { return nullptr; }
}  // namespace pagoda
#endif
