#include "kernels/cpu/products/operands.h"

#include <bit>
#include <cstring>
#include <utility>

#include "kernels/cpu/rows/row_math.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

using Half = uint16_t __attribute__((vector_size(64)));

// ---- shuffles ----

// Lanes of two vectors of 16 words behind each other that one step of a transposition puts in the
// lower, or the upper, of two rows `kBetweenSteps` apart (Eklundh 1972).
template <int kBetweenSteps, bool kUpper>
constexpr int exchanged_lane(int lane) {
  if (kUpper) return lane & kBetweenSteps ? 16 + lane : lane + kBetweenSteps;
  return lane & kBetweenSteps ? 16 + lane - kBetweenSteps : lane;
}
template <int kBetweenSteps, bool kUpper, int... kLane>
PAGODA_INLINE UVec exchanged(UVec a, UVec b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, exchanged_lane<kBetweenSteps, kUpper>(kLane)...);
}

template <int kBetweenSteps>
PAGODA_INLINE void exchange(UVec (&rows)[16]) {
  constexpr auto kLanes16 = std::make_integer_sequence<int, 16>{};
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    if (r & kBetweenSteps) continue;
    const UVec a = rows[r], b = rows[r + kBetweenSteps];
    rows[r] = exchanged<kBetweenSteps, false>(a, b, kLanes16);
    rows[r + kBetweenSteps] = exchanged<kBetweenSteps, true>(a, b, kLanes16);
  }
}

PAGODA_INLINE void transpose(UVec (&rows)[16]) {
  exchange<8>(rows);
  exchange<4>(rows);
  exchange<2>(rows);
  exchange<1>(rows);
}

// Elements [first, first + 16) of two rows of 32, alternating.
template <int kFirst, int... kLane>
PAGODA_INLINE UVec interleave(Half even, Half odd, std::integer_sequence<int, kLane...>) {
  return std::bit_cast<UVec>(
      __builtin_shufflevector(even, odd, (kFirst + kLane / 2 + (kLane & 1 ? 32 : 0))...));
}
template <int kFirst>
PAGODA_INLINE UVec interleave(Half even, Half odd) {
  return interleave<kFirst>(even, odd, std::make_integer_sequence<int, 32>{});
}

// ---- rows ----

// A block that is not whole, with zeros around it, or whose rows are not `stride` apart.
struct Padded {
  explicit Padded(const BlockRows& m) {
    for (int64_t r = 0; r < m.rows; ++r) {
      std::memcpy(elements + r * kBlock, m.row(r), static_cast<size_t>(m.cols) * sizeof(bf16));
    }
  }
  BlockRows block() const { return {elements, kBlock, kBlock, kBlock}; }

  alignas(64) bf16 elements[kBlock * kBlock] = {};
};

bool whole(const BlockRows& m) { return m.rows == kBlock && m.cols == kBlock && m.each == nullptr; }

PAGODA_INLINE UVec block_row(const BlockRows& m, int64_t r) {
  UVec row;
  std::memcpy(&row, m.at + r * m.stride, sizeof row);
  return row;
}

PAGODA_INLINE void put(std::byte* at, UVec v) { std::memcpy(at, &v, sizeof v); }

// ---- the two forms ----

// Elements [first, first + 16) of 32.
PAGODA_INLINE Vec widened(UVec row, int64_t first) {
  HalfRow half;
  std::memcpy(&half, reinterpret_cast<const bf16*>(&row) + first, sizeof half);
  return widen_lanes(half);
}
PAGODA_INLINE void put(std::byte* at, Vec v) { std::memcpy(at, &v, sizeof v); }

// Row r of a left operand's step.
PAGODA_INLINE void put_left(StepForm form, std::byte* step, int64_t r, UVec row) {
  if (form == StepForm::kPairs) return put(step + r * 64, row);
  put(step + r * 128, row << 16);
  put(step + r * 128 + 64, row & 0xffff0000u);
}
// Row i of tile t of a right operand's step.
PAGODA_INLINE void put_right(StepForm form, std::byte* step, int64_t t, int64_t i, UVec pairs) {
  if (form == StepForm::kPairs) return put(step + t * kTileBytes + i * 64, pairs);
  put(step + t * 2 * kTileBytes + i * 64, pairs << 16);
  put(step + t * 2 * kTileBytes + kTileBytes + i * 64, pairs & 0xffff0000u);
}
// Depths 2i and 2i + 1 of a right operand's step, whose columns are those of two rows.
PAGODA_INLINE void put_depths(StepForm form, std::byte* step, int64_t i, UVec even, UVec odd) {
  if (form == StepForm::kPairs) {
    const Half low = std::bit_cast<Half>(even), high = std::bit_cast<Half>(odd);
    put(step + i * 64, interleave<0>(low, high));
    return put(step + kTileBytes + i * 64, interleave<16>(low, high));
  }
  for (int64_t t = 0; t < 2; ++t) {
    put(step + t * 2 * kTileBytes + i * 64, widened(even, t * kTileSide));
    put(step + t * 2 * kTileBytes + kTileBytes + i * 64, widened(odd, t * kTileSide));
  }
}

// Rows (2i, 2i + 1) as pairs: columns from kFirst on.
template <int kFirst>
PAGODA_INLINE UVec paired_row(const BlockRows& m, int i) {
  return interleave<kFirst>(std::bit_cast<Half>(block_row(m, 2 * i)),
                            std::bit_cast<Half>(block_row(m, 2 * i + 1)));
}

template <int kFirst>
PAGODA_INLINE void pack_left_tile(StepForm form, const BlockRows& m, std::byte* step) {
  UVec rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = paired_row<kFirst>(m, i);
  transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) put_left(form, step, kFirst + i, rows[i]);
}

// ---- sums ----

PAGODA_INLINE void load_tile(const float* tile, bool transposed, UVec (&rows)[16]) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) std::memcpy(&rows[i], tile + i * 16, sizeof(UVec));
  if (transposed) transpose(rows);
}

PAGODA_INLINE void add_bias(const float* bias, UVec (&rows)[16]) {
  if (bias == nullptr) return;
  const Vec added = load(bias);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = std::bit_cast<UVec>(std::bit_cast<Vec>(rows[i]) + added);
}

// Sixteen rows by sixteen columns of the target, from one tile.
PAGODA_INLINE void store_tile(const float* tile, bool transposed, const float* bias, DType dt,
                              std::byte* at, int64_t row_bytes) {
  UVec rows[16];
  load_tile(tile, transposed, rows);
  add_bias(bias, rows);
  if (dt == DType::kF32) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) put(at + i * row_bytes, rows[i]);
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const HalfRow rounded = round_lanes(std::bit_cast<Vec>(rows[i]));
    std::memcpy(at + i * row_bytes, &rounded, sizeof rounded);
  }
}

PAGODA_TARGET_CLONES void store_block(const float* sums, bool transposed, const float* bias,
                                      DType dt, std::byte* at, int64_t row_bytes) {
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      const float* tile = sums + (transposed ? 2 * j + i : 2 * i + j) * 256;
      std::byte* corner = at + i * kTileSide * row_bytes + j * kTileSide * dtype_bytes(dt);
      const float* added = bias == nullptr ? nullptr : bias + j * kTileSide;
      if (transposed) {
        store_tile(tile, true, added, dt, corner, row_bytes);
      } else {
        store_tile(tile, false, added, dt, corner, row_bytes);
      }
    }
  }
}

// Rows from `row` on and columns from `col` on are added to the target's sums, from one tile.
PAGODA_INLINE void add_tile(const float* tile, bool transposed, const float* bias, int64_t row,
                            int64_t col, const BlockTarget& target) {
  if (row >= target.rows || col >= target.cols) return;
  UVec rows[16];
  load_tile(tile, transposed, rows);
  add_bias(bias, rows);
  const int64_t most = target.rows - row, cols = target.cols - col;
  const int64_t count = cols < kTileSide ? cols : kTileSide;
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTileSide; ++i) {
    if (i >= most) break;
    Vec v = std::bit_cast<Vec>(rows[i]);
    if (target.dt == DType::kBF16) v = as_stored<bf16>(v);
    float* at = target.sum(row + i) + col;
    store_lanes(at, load_lanes(at, count) + target.scale_of(row + i) * v, count);
  }
}

PAGODA_TARGET_CLONES void add_block(const float* sums, bool transposed, const float* bias,
                                    const BlockTarget& target) {
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      const float* tile = sums + (transposed ? 2 * j + i : 2 * i + j) * 256;
      const float* added = bias == nullptr ? nullptr : bias + j * kTileSide;
      if (transposed) {
        add_tile(tile, true, added, i * kTileSide, j * kTileSide, target);
      } else {
        add_tile(tile, false, added, i * kTileSide, j * kTileSide, target);
      }
    }
  }
}

}  // namespace

PAGODA_TARGET_CLONES void pack_left_rows(StepForm form, const BlockRows& m, std::byte* steps) {
  const bool all_rows = m.rows == kBlock && m.each == nullptr;
  const int64_t rest = m.cols % kBlock, whole_steps = all_rows ? m.cols / kBlock : 0;
  for (int64_t s = 0; s < whole_steps; ++s) {
    for (int64_t r = 0; r < kBlock; ++r) {
      put_left(form, steps + s * step_bytes(form), r,
               block_row({m.at + s * kBlock, m.stride, 0, 0}, r));
    }
  }
  for (int64_t col = whole_steps * kBlock; col < m.cols; col += kBlock) {
    const int64_t cols = m.cols - col < kBlock ? rest : kBlock;
    const Padded padded({m.at, m.stride, m.rows, cols, m.each, m.col + col});
    pack_left_rows(form, padded.block(), steps + col / kBlock * step_bytes(form));
  }
}

PAGODA_TARGET_CLONES void pack_left_columns(StepForm form, const BlockRows& m, std::byte* step) {
  if (!whole(m)) return pack_left_columns(form, Padded(m).block(), step);
  pack_left_tile<0>(form, m, step);
  pack_left_tile<16>(form, m, step);
}

PAGODA_TARGET_CLONES void pack_right_rows(StepForm form, const BlockRows& m, std::byte* step) {
  if (!whole(m)) return pack_right_rows(form, Padded(m).block(), step);
  for (int64_t t = 0; t < 2; ++t) {
    UVec rows[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = block_row(m, t * kTileSide + i);
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) put_right(form, step, t, i, rows[i]);
  }
}

PAGODA_TARGET_CLONES void pack_right_columns(StepForm form, const BlockRows& m, std::byte* step) {
  if (!whole(m)) return pack_right_columns(form, Padded(m).block(), step);
#pragma GCC unroll 4
  for (int i = 0; i < 16; ++i) {
    put_depths(form, step, i, block_row(m, 2 * i), block_row(m, 2 * i + 1));
  }
}

PAGODA_TARGET_CLONES void pack_right_stretch(StepForm form, const BlockRows& m, int64_t block_bytes,
                                             std::byte* step) {
  constexpr int64_t kAhead = 4;  // rows
  const int64_t blocks = m.cols / kBlock;
  for (int64_t i = 0; i < kTileSide; ++i) {
    for (int64_t b = 0; b < blocks; ++b) {
      const BlockRows pair{m.at + 2 * i * m.stride + b * kBlock, m.stride, 2, kBlock};
      __builtin_prefetch(pair.at + kAhead * m.stride, 0, 2);
      __builtin_prefetch(pair.at + (kAhead + 1) * m.stride, 0, 2);
      put_depths(form, step + b * block_bytes, i, block_row(pair, 0), block_row(pair, 1));
    }
  }
}

void store_sums(const float* sums, bool transposed, const float* bias, const BlockTarget& target) {
  if (target.sums != nullptr) return add_block(sums, transposed, bias, target);
  const int64_t element = dtype_bytes(target.dt), row_bytes = target.stride * element;
  auto* at = static_cast<std::byte*>(target.at);
  if (target.rows == kBlock && target.cols == kBlock) {
    return store_block(sums, transposed, bias, target.dt, at, row_bytes);
  }
  alignas(64) std::byte whole[kBlockFloats * sizeof(float)];
  store_block(sums, transposed, bias, target.dt, whole, kBlock * element);
  for (int64_t r = 0; r < target.rows; ++r) {
    std::memcpy(at + r * row_bytes, whole + r * kBlock * element,
                static_cast<size_t>(target.cols * element));
  }
}

PAGODA_TARGET_CLONES void add_sums(const float* sums, bool add, const BlockTarget& target) {
  float* out = static_cast<float*>(target.at);
  for (int64_t r = 0; r < target.rows; ++r, out += target.stride) {
    const float* row = sums + r / kTileSide * 512 + r % kTileSide * kTileSide;
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t rest = target.cols - half * kTileSide;
      if (rest <= 0) break;
      const int64_t count = rest < kTileSide ? rest : kTileSide;
      float* at = out + half * kTileSide;
      const Vec before = add ? load_lanes(at, count) : splat(0.0f);
      const Vec v = before + load(row + half * 256);
      store_lanes(at, v, count);
    }
  }
}

}  // namespace pagoda
