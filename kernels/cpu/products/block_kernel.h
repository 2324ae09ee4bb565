// One block of a product of bf16 matrices, 32 rows by 32 columns of fp32 sums, single-threaded: on
// AMX tiles (Intel SDM, TDPBF16PS), with dot products of pairs (VDPBF16PS) or, widened to fp32,
// with multiply-adds.
//
// A processor's best kernel decides in which of two orders its sums are made (BlockSum), each of
// which has one result, to the last bit: everything is rounded to nearest-even, subnormals are zero
// before and after each operation, and products of two bf16 are exact in fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagoda {

inline constexpr int64_t kBlock = 32;      // rows and columns of a block, depth of a step
inline constexpr int64_t kTileSide = 16;   // rows and columns of a tile: a block is 2 x 2 of them
inline constexpr int64_t kTileBytes = 1024;
inline constexpr int64_t kStepBytes = 2 * kTileBytes;  // what an operand has for a step, in pairs
inline constexpr int64_t kBlockFloats = kBlock * kBlock;

// How a step of an operand is packed. A kernel that multiplies fp32 has bf16 widened once, where
// they are packed, and takes twice the bytes; others take the pairs they multiply.
enum class StepForm : uint8_t { kPairs, kWide };
inline constexpr int64_t step_bytes(StepForm form) {
  return form == StepForm::kWide ? 2 * kStepBytes : kStepBytes;
}

// Lines that a later block reads, brought from memory to the L2 cache meanwhile: at step s those of
// row r < rows at at + r * stride + s * step_stride (bytes).
struct Ahead {
  const std::byte* at = nullptr;
  int64_t rows = 0, stride = 0, step_stride = 0;
};

inline void ask_for(const Ahead& ahead, int64_t step) {
  const std::byte* at = ahead.at + step * ahead.step_stride;
  for (int64_t r = 0; r < ahead.rows; ++r) __builtin_prefetch(at + r * ahead.stride, 0, 2);
}

struct BlockProduct {
  // Row r < 16 of tile t < 2 at step s: 32 bf16 from
  // left + r * row_stride + t * tile_stride + s * step_stride (bytes). In the wide form 16 fp32
  // of even depths are there, then 16 of odd ones; the strides are those of rows packed behind each
  // other, and rows up to 32 are readable.
  const std::byte* left;
  int64_t row_stride, tile_stride, step_stride;
  // Tile t at step s from right + s * kStepBytes + t * kTileBytes: 16 rows, each the pair of depths
  // (2i, 2i + 1) of 16 columns, the two of a column beside each other. 64-byte aligned. In the wide
  // form, of twice these bytes, 16 rows of the columns' even depths, fp32, then 16 of the odd ones.
  const std::byte* right;
  int64_t steps;
  // Four tiles of (16, 16), 64-byte aligned: rows 0 to 15 by columns 0 to 15, then columns 16 to
  // 31; rows 16 to 31 likewise.
  float* sums;
  bool add = false;  // to what `sums` holds
  // The rest of the 32 need not be computed: a kernel may leave it as it was or as zeros make it.
  int64_t rows = kBlock, cols = kBlock;
  int64_t last_depth = kBlock;  // of the last step: what lies behind is packed as zeros
  Ahead ahead = {};
  // A kernel of wide form takes both; kernels of pairs take pairs alone.
  StepForm left_form = StepForm::kPairs, right_form = StepForm::kPairs;
};

enum class BlockSum {
  // Depth is taken in steps of 32. A step makes two chains of fused multiply-adds from zero, one
  // over its even and one over its odd positions, adds the second to the first and the result to
  // the block's sum. That is what TDPBF16PS does to a tile, and what the vector kernels do to
  // sixteen or eight columns at a time.
  kTwoChains,
  // One chain of fused multiply-adds over the whole depth, of each pair of positions the odd one
  // first: that is what VDPBF16PS does, at twice the rate of widened multiply-adds on AMD's
  // processors from Zen 4 on and at half of it on Intel's.
  kOneChain,
};

// How products use a kernel best on the processors that have it, as measured there. Decides of no
// bit.
struct BlockUse {
  int64_t in_place_pairs;  // of tiles of rows up to which a left operand is better not packed
  int64_t stripe_blocks;   // of columns packed at once, at most
  int64_t stripe_sums;     // blocks of sums kept in the L2 cache
  bool ask_for_columns;    // of the next slab, when those of this one are multiplied
};

struct BlockKernel {
  const char* name;
  BlockSum sum;
  StepForm form;  // in which operands are best packed for it
  BlockUse use;
  // What a thread sets up before its first block, and restores behind its last: other threads then
  // see what it wrote.
  void (*enter)();
  void (*multiply)(const BlockProduct&);
  void (*leave)();
  // target = sums, past the cache; a sum of -0 counts as 0. 32 rows of 32 floats, `stride` floats
  // apart, each 64-byte aligned.
  void (*write)(const float* sums, float* target, int64_t stride);
  // Multiplies what registers hold, again and again; returns the floating-point operations that
  // were: the rate no product can exceed. Between enter and leave.
  int64_t (*saturate)(int64_t rounds);
};

// A thread's time between enter and leave: at most one at a time in a thread.
class BlockSession {
 public:
  explicit BlockSession(const BlockKernel& kernel) : kernel_(kernel) { kernel.enter(); }
  ~BlockSession() { kernel_.leave(); }
  BlockSession(const BlockSession&) = delete;
  BlockSession& operator=(const BlockSession&) = delete;
  void multiply(const BlockProduct& product) const { kernel_.multiply(product); }
  void write(const float* sums, float* target, int64_t stride) const {
    kernel_.write(sums, target, stride);
  }
  const BlockUse& use() const { return kernel_.use; }
  StepForm form() const { return kernel_.form; }
  int64_t saturate(int64_t rounds) const { return kernel_.saturate(rounds); }

 private:
  const BlockKernel& kernel_;
};

// Those that this processor and system can run, the best first: AMX, AVX512_BF16, AVX-512, AVX2; on
// Intel's processors AVX-512 before AVX512_BF16. Vendor and features decide, never a timing: bits
// depend on it. The first call asks the system for the tiles.
const std::vector<const BlockKernel*>& block_kernels();

// One of each source file; nullptr where it cannot run.
const BlockKernel* amx_block_kernel();
const BlockKernel* dot_block_kernel();
const BlockKernel* avx512_block_kernel();
const BlockKernel* avx2_block_kernel();

}  // namespace pagoda
