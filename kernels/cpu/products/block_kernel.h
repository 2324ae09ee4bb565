// One block of a product of bf16 matrices, 32 rows by 32 columns of fp32 sums, single-threaded: on
// AMX tiles (Intel SDM, TDPBF16PS), with dot products of pairs (VDPBF16PS) or, widened to fp32,
// with multiply-adds.
//
// A processor's best kernel decides which of two orders its sums have (BlockSum). Each order gives
// one result, to the last bit: everything is rounded to nearest-even, subnormals are zero before
// and after each operation, and products of two bf16 are exact in fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagoda {

inline constexpr int64_t kBlock = 32;      // rows and columns of a block, depth of a step
inline constexpr int64_t kTileSide = 16;   // rows and columns of a tile: a block is 2 x 2 of them
inline constexpr int64_t kTileBytes = 1024;
inline constexpr int64_t kStepBytes = 2 * kTileBytes;  // bytes of an operand's step, in pairs
inline constexpr int64_t kBlockFloats = kBlock * kBlock;

// How a step of an operand is packed. For a kernel that multiplies fp32, bf16 is widened once, when
// it is packed, and takes twice the bytes; other kernels take the pairs that they multiply.
enum class StepForm : uint8_t { kPairs, kWide };
inline constexpr int64_t step_bytes(StepForm form) {
  return form == StepForm::kWide ? 2 * kStepBytes : kStepBytes;
}

// Lines that a later block reads and that are fetched into the L2 cache meanwhile: at step s the
// line of row r < rows at at + r * stride + s * step_stride (bytes).
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
  // Four tiles of (16, 16), 64-byte aligned: rows 0 to 15 by columns 0 to 15, then by columns 16 to
  // 31; then the same for rows 16 to 31.
  float* sums;
  bool add = false;  // adds to the content of `sums`
  // The rest of the 32 need not be computed: a kernel may leave it as it was or as zeros make it.
  int64_t rows = kBlock, cols = kBlock;
  int64_t last_depth = kBlock;  // depth of the last step: positions behind it are packed as zeros
  Ahead ahead = {};
  // A kernel of wide form takes both; kernels of pairs take pairs alone.
  StepForm left_form = StepForm::kPairs, right_form = StepForm::kPairs;
};

// Rows of the left operand are packed behind each other, its steps too.
inline void set_packed_left(BlockProduct& product, StepForm form, const std::byte* packed) {
  product.left = packed;
  product.left_form = form;
  product.row_stride = step_bytes(form) / kBlock;
  product.tile_stride = kTileSide * product.row_stride;
  product.step_stride = step_bytes(form);
}

enum class BlockSum {
  // Depth is taken in steps of 32. A step makes two chains of fused multiply-adds from zero, one
  // over its even and one over its odd positions, adds the second to the first and the result to
  // the block's sum. TDPBF16PS does this to a tile, and the vector kernels do it to sixteen or
  // eight columns at a time.
  kTwoChains,
  // One chain of fused multiply-adds over the whole depth, with the odd position of each pair
  // first. VDPBF16PS does this, at twice the rate of widened multiply-adds on AMD's processors from
  // Zen 4 on and at half of it on Intel's.
  kOneChain,
};

// The best way to use a kernel, as measured on the processors that have it. It changes no bit.
struct BlockUse {
  int64_t in_place_pairs;  // pairs of tiles of rows up to which a left operand is better not packed
  int64_t stripe_blocks;   // the most blocks of columns that are packed at once
  int64_t stripe_sums;     // blocks of sums kept in the L2 cache
  bool ask_for_columns;    // prefetch the next slab's columns while this one's are multiplied
};

struct BlockKernel {
  const char* name;
  BlockSum sum;
  StepForm form;  // the best packing of operands
  BlockUse use;
  // A thread's set-up before its first block, and its restoration after the last one: then other
  // threads see what it wrote.
  void (*enter)();
  void (*multiply)(const BlockProduct&);
  void (*leave)();
  // target = sums, past the cache; a sum of -0 counts as 0. 32 rows of 32 floats, `stride` floats
  // apart, each 64-byte aligned.
  void (*write)(const float* sums, float* target, int64_t stride);
  // Multiplies the content of registers again and again, and returns the number of floating-point
  // operations: no product can exceed this rate. Call it between enter and leave.
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

// The kernels that this processor and system can run, the best first: AMX, AVX512_BF16, AVX-512,
// AVX2; on Intel's processors AVX-512 comes before AVX512_BF16. Vendor and features decide the
// order, never a timing, since bits depend on it. The first call asks the system for the tiles.
const std::vector<const BlockKernel*>& block_kernels();

// The kernel of each source file; nullptr if it cannot run here.
const BlockKernel* amx_block_kernel();
const BlockKernel* dot_block_kernel();
const BlockKernel* avx512_block_kernel();
const BlockKernel* avx2_block_kernel();

}  // namespace pagoda
