// The index arithmetic that host and GPU share, and the emulated machine: that it computes what a
// GPU would, and that it notices the mistakes it is there for.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/random.h"
#include "kernels/cuda/machine/machine.cuh"
#include "kernels/cuda/tiles/fp16_tile.cuh"
#include "kernels/cuda/tiles/unit.cuh"
#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

// ---- tiles ----

TEST(Tiles, DocumentsAreCutFromTheirOwnFirstRow) {
  const int32_t starts[] = {0, 1, 1, 40, 104};
  const std::vector<DocumentTile> tiles = document_tiles(starts, 4, 32);
  std::vector<int> seen(104, 0);
  for (const DocumentTile& tile : tiles) {
    EXPECT_EQ((tile.row - tile.begin) % 32, 0);
    EXPECT_LE(tile.row + tile.rows, tile.end);
    for (int32_t i = 0; i < tile.rows; ++i) ++seen[static_cast<size_t>(tile.row + i)];
  }
  EXPECT_EQ(seen, std::vector<int>(104, 1));
  EXPECT_EQ(tiles.size(), 5u);
  EXPECT_EQ(tiles.front().row, 72);
}

// ---- the emulated machine ----

using namespace emulated;

template <typename Body>
struct InEveryThread {
  static constexpr int kThreads = 64, kSharedBytes = 1024;
  Body body;
  void operator()() const { body(); }
};

template <typename Body>
void run(int64_t blocks, const Body& body) {
  Queue(test_stream(), "test").launch(blocks, InEveryThread<Body>{body});
  test_stream().synchronize();
}

TEST(Emulation, CollectivesExchange) {
  run(3, [] {
    const int lane = lane_number();
    require(shuffle(lane * 10, 7) == 70);
    require(shuffle_xor(lane, 5) == (lane ^ 5));
    require(ballot(lane % 3 == 0) == 0x49249249u);
    require(any_in_block(thread_number() == 63));
    require(!any_in_block(false));
  });
}

TEST(Emulation, SharedMemoryIsVisibleAfterABarrier) {
  for (bool backwards : {false, true}) {
    run_backwards(backwards);
    run(2, [] {
      int* shared = reinterpret_cast<int*>(shared_memory());
      shared[thread_number()] = thread_number() + static_cast<int>(block_number());
      sync_block();
      const int other = 63 - thread_number();
      require(shared[other] == other + static_cast<int>(block_number()));
    });
  }
  run_backwards(false);
}

TEST(Emulation, AMissingBarrierShowsWhenWarpsGoBackwards) {
  const auto sum = [](bool backwards) {
    int seen[64] = {};
    run_backwards(backwards);
    run(1, [&seen] {
      int* shared = reinterpret_cast<int*>(shared_memory());
      shared[thread_number()] = thread_number();
      seen[thread_number()] = shared[63 - thread_number()];
    });
    run_backwards(false);
    return std::vector<int>(seen, seen + 64);
  };
  EXPECT_NE(sum(false), sum(true));
}

TEST(Emulation, CopiesArriveWhenTheyAreWaitedFor) {
  alignas(16) static const float source[] = {1, 2, 3, 4};
  run(1, [] {
    float* shared = reinterpret_cast<float*>(shared_memory()) + 4 * thread_number();
    copy_async16(shared, source, 12);
    commit_copies();
    require(std::isnan(shared[0]));
    commit_copies();
    wait_copies<1>();
    require(shared[0] == 1 && shared[2] == 3 && shared[3] == 0);
  });
}

TEST(EmulationDeathTest, DivergenceIsNoticed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run(1, [] {
                 if (lane_number() != 3) sync_warp();
               }),
               "does not reach a collective");
  EXPECT_DEATH(run(1, [] {
                 if (warp_number() == 1) sync_block();
               }),
               "does not reach a barrier");
  EXPECT_DEATH(run(1, [] {
                 copy_async16(shared_memory() + 16 * thread_number(), shared_memory(), 0);
                 commit_copies();
               }),
               "nobody waited");
}

// ---- units: what a warp multiplies, against a plain product ----

// (16, 32) of left times (32, 16) of right, with depths along the rows of a tile or across them.
template <typename Unit, bool kLeftInRows, bool kRightInRows>
void check_unit() {
  using T = typename Unit::Element;
  constexpr int kDepth = 64;
  using Left = std::conditional_t<kLeftInRows, Tile<T, 16, kDepth>, Tile<T, kDepth, 64>>;
  using Right = std::conditional_t<kRightInRows, Tile<T, 16, kDepth>, Tile<T, kDepth, 64>>;
  TestTensor a(dtype_of<T>::value, 16 * kDepth), b(dtype_of<T>::value, 16 * kDepth);
  a.randomise(1);
  b.randomise(2);
  static thread_local float result[16][16];
  const auto fill = [](const auto& tile, const TestTensor& from, bool in_rows) {
    const T* values = static_cast<const T*>(from.data());
    for (int i = 0; i < 16 * kDepth; ++i) {
      const int row = i / kDepth, depth = i % kDepth;
      *(in_rows ? tile.at(row, depth) : tile.at(depth, row)) = values[i];
    }
  };
  std::vector<unsigned char> memory(Left::kBytes + Right::kBytes + 16);
  auto* base = reinterpret_cast<unsigned char*>(
      (reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
  const Left left{reinterpret_cast<T*>(base)};
  const Right right{reinterpret_cast<T*>(base + Left::kBytes)};
  fill(left, a, kLeftInRows);
  fill(right, b, kRightInRows);
  float* out = &result[0][0];
  run(1, [=] {
    float sums[1][2][4] = {};
    multiply_tiles<Unit, kLeftInRows, kRightInRows, kDepth>(left, 0, right, 0, sums);
    for (int n = 0; n < 2; ++n) {
      for_sums([&](int i, int row, int column) { out[row * 16 + 8 * n + column] = sums[0][n][i]; });
    }
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      float want = 0.0f;
      for (int d = 0; d < kDepth; ++d) {
        want += static_cast<float>(a.get(i * kDepth + d)) *
                static_cast<float>(b.get(j * kDepth + d));
      }
      ASSERT_EQ(result[i][j], want) << i << ", " << j;
    }
  }
}

template <typename Unit>
void check_layouts() {
  check_unit<Unit, true, true>();
  check_unit<Unit, true, false>();
  check_unit<Unit, false, false>();
  check_unit<Unit, false, true>();
}

TEST(Units, MultiplyInOrderOfDepth) {
  check_layouts<TensorUnit>();
  check_layouts<PlainUnit<float>>();
}

// ---- operands as fp16 ----

TEST(Fp16, RoundsAsTheCompilerDoes) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 65519) {
    const float value = float_of(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(fp16_bits(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << value;
  }
  for (float value : {0x1p-24f, 0x1p-25f, 0x1.8p-24f, 65519.0f, 65520.0f, INFINITY}) {
    EXPECT_EQ(fp16_bits(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << value;
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(std::bit_cast<_Float16>(fp16_bits(NAN)))));
}

// Rows of a 64 x 64 operand: all sizes side by side, each row another stretch of them; zeros; the
// smallest numbers; one that is not finite among others.
float operand(int row, int depth) {
  if (row == 3) return 0.0f;
  if (row == 4) return float_of(static_cast<uint32_t>(1 + depth) << 16);
  if (row == 5 && depth == 9) return -INFINITY;
  if (row == 6 && depth == 60) return NAN;
  const uint32_t draw = philox(5, RandomPurpose::kTest, uint64_t(row), uint64_t(depth))[0];
  const uint32_t lowest = static_cast<uint32_t>(row) * 2, sizes = 1 + static_cast<uint32_t>(row);
  const uint32_t field = 1 + (lowest + draw % sizes * 2) % 254;
  return float_of((draw & 0x807f0000u) | field << 23);
}

// Checks a finite row: no number is far off, and those near the largest are exact.
void check_row(int row, const std::vector<float>& stored, const RowScale& scale) {
  double most = 0.0;
  for (int d = 0; d < 64; ++d) most = std::max(most, std::abs(double(operand(row, d))));
  for (int d = 0; d < 64; ++d) {
    const double want = double(operand(row, d));
    const double got = double(stored[size_t(d)]) * double(scale.half) * double(scale.rest);
    const bool exact = std::abs(want) >= most * 0x1p-30;
    ASSERT_LE(std::abs(got - want), exact ? 0.0 : most * 0x1p-39) << row << ", " << d;
    ASSERT_LT(std::abs(stored[size_t(d)]), 32768.0f);
  }
}

template <bool kDepthInRows>
void check_fp16() {
  std::vector<bf16> memory(64 * 64 + 8);
  auto* base = reinterpret_cast<bf16*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
  const Tile<bf16, 64, 64> tile{base};
  const auto place = [&](int row, int depth) {
    return kDepthInRows ? tile.at(row, depth) : tile.at(depth, row);
  };
  for (int i = 0; i < 64 * 64; ++i) *place(i / 64, i % 64) = bf16_round(operand(i / 64, i % 64));
  std::vector<RowScale> scales(64);
  run(1, [=, at = scales.data()] { to_fp16<64, kDepthInRows>(tile, at); });
  for (int row = 0; row < 64; ++row) {
    std::vector<float> stored;
    for (int d = 0; d < 64; ++d) {
      stored.push_back(static_cast<float>(std::bit_cast<_Float16>(place(row, d)->bits)));
    }
    if (row == 5) {
      EXPECT_EQ(stored[9], -INFINITY);
    } else if (row == 6) {
      EXPECT_TRUE(std::isnan(stored[60]));
    } else {
      check_row(row, stored, scales[size_t(row)]);
    }
    EXPECT_GT(scales[size_t(row)].half * scales[size_t(row)].rest, 0.0f);
  }
}

TEST(Fp16, RowsKeepTheirNumbers) {
  check_fp16<true>();
  check_fp16<false>();
}

// Eight rows' chunks of a column lie in eight groups of banks: ldmatrix reads them at once.
template <typename TileType>
void check_swizzle() {
  std::vector<unsigned char> memory(TileType::kBytes);
  const TileType tile{reinterpret_cast<typename TileType::Element*>(memory.data())};
  std::vector<bool> used(static_cast<size_t>(TileType::kBytes) / 16, false);
  for (int row = 0; row < TileType::kRows; ++row) {
    for (int i = 0; i < TileType::kChunks; ++i) {
      const auto at = reinterpret_cast<unsigned char*>(tile.chunk(row, i)) - memory.data();
      ASSERT_EQ(at % 16, 0);
      ASSERT_FALSE(used[static_cast<size_t>(at / 16)]);
      used[static_cast<size_t>(at / 16)] = true;
    }
  }
  for (int row = 0; row < TileType::kRows; row += 8) {
    for (int i = 0; i < TileType::kChunks; ++i) {
      uint32_t banks = 0;
      for (int r = 0; r < 8; ++r) {
        const auto at = reinterpret_cast<unsigned char*>(tile.chunk(row + r, i)) - memory.data();
        banks |= 1u << (at / 16 % 8);
      }
      ASSERT_EQ(banks, 0xffu) << row << ", " << i;
    }
  }
}

TEST(Units, SwizzledTilesMeetNoBankTwice) {
  check_swizzle<Tile<bf16, 64, 64>>();
  check_swizzle<Tile<bf16, 64, 96>>();
  check_swizzle<Tile<bf16, 64, 128>>();
  check_swizzle<Tile<float, 32, 32>>();
  check_swizzle<Tile<float, 16, 128>>();
}

}  // namespace
}  // namespace pagoda
