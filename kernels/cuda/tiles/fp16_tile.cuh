// Operands for tensor cores that multiply fp16 and not bf16 (compute capability 7.5).
//
// A bf16 number has 8 significant bits and 8 of exponent, an fp16 one 11 and 5. So a tile of an
// operand becomes fp16 in place, its rows (columns, of a right operand) each times a power of two
// that brings the largest number of the row to [2^14, 2^15): loss scaling in its finest form,
// without a state, a check or a step that is skipped. Numbers down to 2^-31 of the row's largest
// stay exact; smaller ones are off by at most 2^-39 of it, which a sum in fp32 hardly sees. Zeros,
// infinities and NaN stay what they are. Sums of a tile's products are multiplied by both powers
// again, exactly. A row's bits depend on its own numbers alone.
#pragma once

#include "kernels/cuda/tiles/tile.cuh"

namespace pagoda::PAGODA_MACHINE {

// An fp16 number of a row stands for itself times half * rest, a product that may be no float.
struct RowScale {
  float half, rest;
};

PAGODA_GPU float power_of_two(int e) { return float_of(static_cast<uint32_t>(e + 127) << 23); }

// The exponent e in [-126, 113] with which largest / 2^e is below 2^15, for a row whose largest
// number, without sign, has these bits as a float.
PAGODA_GPU int exponent_of_row(uint32_t largest) {
  const int field = static_cast<int>(largest >> 23);
  return (field < 15 ? 15 : field > 254 ? 254 : field) - 141;
}
PAGODA_GPU RowScale scale_of_row(int e) {
  const int half = e >> 1;
  return {power_of_two(half), power_of_two(e - half)};
}

// A sum of products of a row and a column.
PAGODA_GPU float times(float sum, const RowScale& row, const RowScale& column) {
  return sum * (row.half * column.half) * (row.rest * column.rest);
}

// Eight numbers of a tile.
struct alignas(16) Chunk {
  uint32_t words[4];

  PAGODA_GPU static Chunk of(const void* memory) {
    Chunk chunk;
    __builtin_memcpy(&chunk, __builtin_assume_aligned(memory, 16), 16);
    return chunk;
  }
  // The bits of number i as a float.
  PAGODA_GPU uint32_t number(int i) const {
    return i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u;
  }
  // Raises largest[i], if it is below, to number i without its sign.
  PAGODA_GPU void raise(uint32_t (&largest)[8]) const {
    PAGODA_UNROLL
    for (int i = 0; i < 8; ++i) largest[i] = larger(largest[i], number(i) & 0x7fffffffu);
  }
  // Stores number i times factor[i] as fp16.
  PAGODA_GPU void store_fp16(void* memory, const float (&factor)[8]) const {
    Chunk halves;
    PAGODA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float low = float_of(number(2 * i)), high = float_of(number(2 * i + 1));
      halves.words[i] = uint32_t{fp16_bits(low * factor[2 * i])} |
                        uint32_t{fp16_bits(high * factor[2 * i + 1])} << 16;
    }
    __builtin_memcpy(__builtin_assume_aligned(memory, 16), &halves, 16);
  }
};

// For rows of an operand along the rows of the tile: a row has as many lanes as chunks.
template <int kThreads, typename TileType>
PAGODA_GPU void rows_to_fp16(const TileType& tile, RowScale* scales) {
  constexpr int kChunks = TileType::kChunks, kAtOnce = kThreads / kChunks;
  static_assert(kWarp % kChunks == 0 && TileType::kRows % kAtOnce == 0);
  const int i = thread_number() % kChunks;
  PAGODA_UNROLL
  for (int first = 0; first < TileType::kRows; first += kAtOnce) {
    const int row = first + thread_number() / kChunks;
    const Chunk chunk = Chunk::of(tile.chunk(row, i));
    uint32_t each[8] = {}, largest = 0;
    chunk.raise(each);
    PAGODA_UNROLL
    for (int j = 0; j < 8; ++j) largest = larger(largest, each[j]);
    PAGODA_UNROLL
    for (int mask = 1; mask < kChunks; mask *= 2) {
      largest = larger(largest, shuffle_xor(largest, mask));
    }
    const int e = exponent_of_row(largest);
    float factor[8];
    PAGODA_UNROLL
    for (int j = 0; j < 8; ++j) factor[j] = power_of_two(-e);
    chunk.store_fp16(tile.chunk(row, i), factor);
    if (i == 0) scales[row] = scale_of_row(e);
  }
}

// For rows of an operand across the rows of the tile: a warp has whole columns of chunks.
template <int kThreads, typename TileType>
PAGODA_GPU void columns_to_fp16(const TileType& tile, RowScale* scales) {
  constexpr int kColumns = TileType::kChunks / (kThreads / kWarp), kAtOnce = kWarp / kColumns;
  constexpr int kChunks = TileType::kRows / kAtOnce;  // a thread's
  static_assert(kColumns > 0 && kWarp % kColumns == 0 && TileType::kRows % kAtOnce == 0);
  const int i = warp_number() * kColumns + lane_number() % kColumns;
  const int depth = lane_number() / kColumns;
  Chunk chunks[kChunks];
  uint32_t largest[8] = {};
  PAGODA_UNROLL
  for (int c = 0; c < kChunks; ++c) {
    chunks[c] = Chunk::of(tile.chunk(depth + c * kAtOnce, i));
    chunks[c].raise(largest);
  }
  float factor[8];
  PAGODA_UNROLL
  for (int j = 0; j < 8; ++j) {
    PAGODA_UNROLL
    for (int mask = kColumns; mask < kWarp; mask *= 2) {
      largest[j] = larger(largest[j], shuffle_xor(largest[j], mask));
    }
    const int e = exponent_of_row(largest[j]);
    factor[j] = power_of_two(-e);
    if (depth == 0) scales[i * 8 + j] = scale_of_row(e);
  }
  PAGODA_UNROLL
  for (int c = 0; c < kChunks; ++c) {
    chunks[c].store_fp16(tile.chunk(depth + c * kAtOnce, i), factor);
  }
}

// Turns a tile that all threads see into fp16, and sets one scale for each row of the operand. All
// threads see both after the next barrier.
template <int kThreads, bool kDepthInRows, typename TileType>
PAGODA_GPU void to_fp16(const TileType& tile, RowScale* scales) {
  if constexpr (kDepthInRows) {
    rows_to_fp16<kThreads>(tile, scales);
  } else {
    columns_to_fp16<kThreads>(tile, scales);
  }
}

}  // namespace pagoda::PAGODA_MACHINE
