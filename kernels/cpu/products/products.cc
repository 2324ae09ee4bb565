#include "kernels/cpu/products/products.h"

#include <algorithm>

#include "kernels/cpu/products/operands.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/ops.h"

namespace pagoda {
namespace {

constexpr int64_t kSharedBytes = kMiB;  // of packed activations: they stay in the L2 cache
constexpr int64_t kMaxRows = 256;       // packed at once
constexpr int64_t kSlabBytes = 16 * kKiB;  // of packed weights: they stay in the L1 cache
constexpr int64_t kWholeDepthPairs =
    2;  // pairs of rows up to which a panel of w is read once, not by slab
constexpr int64_t kSerialElements = 1 << 14;  // packed by one thread: waking others takes longer

int64_t slab_steps(StepForm form) { return kSlabBytes / step_bytes(form); }

int64_t blocks_of(int64_t n) { return div_ceil(n, kBlock); }

// Rows of activations of depth k that are packed at once.
int64_t chunk_rows(int64_t k) {
  const int64_t rows = kSharedBytes / (blocks_of(k) * kBlock * int64_t{sizeof(bf16)});
  return std::clamp(rows / kBlock * kBlock, kBlock, kMaxRows);
}

BlockRows block_of(const bf16* m, int64_t stride, int64_t row, int64_t rows, int64_t col,
                   int64_t cols) {
  return {m + row * stride + col, stride, std::min(kBlock, rows - row),
          std::min(kBlock, cols - col)};
}

// The same of rows that may be read in place: of `width` elements each.
BlockRows block_of(const InputRows& m, int64_t width, int64_t row, int64_t rows, int64_t col,
                   int64_t cols) {
  if (m.each == nullptr) {
    return block_of(static_cast<const bf16*>(m.dense), width, row, rows, col, cols);
  }
  return {nullptr,      0,  std::min(kBlock, rows - row), std::min(kBlock, cols - col),
          m.each + row, col};
}

// pack(i) for i in [0, count), `elements` in all.
template <typename Pack>
void pack_all(ThreadPool& pool, int64_t count, int64_t elements, Pack&& pack) {
  if (elements <= kSerialElements) {
    for (int64_t i = 0; i < count; ++i) pack(i);
  } else {
    pool.parallel_for(count, pack);
  }
}

// body(session, begin, end) once a thread, on neighbouring parts of [0, count).
template <typename Body>
void for_stretches(const BlockKernel& kernel, ThreadPool& pool, int64_t count, Body&& body) {
  const int64_t parts = std::min<int64_t>(pool.threads(), count);
  pool.parallel_for(parts, [&](int64_t i) {
    const BlockSession session(kernel);
    body(session, count * i / parts, count * (i + 1) / parts);
  });
}

void set_right(BlockProduct& product, StepForm form, const std::byte* packed) {
  product.right = packed;
  product.right_form = form;
}

// Rows [row, row + rows) of a product, with A packed: (pairs of tiles of rows, steps).
struct Chunk {
  const Product& p;
  int64_t row, rows;
  int64_t pairs, steps;
  StepForm form;
  const std::byte* packed;

  int64_t step_bytes() const { return pagoda::step_bytes(form); }
  const bf16* weights() const { return static_cast<const bf16*>(p.b); }
  const std::byte* of_pair(int64_t pair) const { return packed + pair * steps * step_bytes(); }
  int64_t pair_rows(int64_t pair) const { return std::min(kBlock, rows - pair * kBlock); }
  BlockTarget target(int64_t pair, int64_t col) const {
    const OutputRows c = p.c.from(row + pair * kBlock, p.n * dtype_bytes(p.c_dt));
    void* dense = c.sums == nullptr ? at(p.c_dt, c.dense, col) : nullptr;
    return {p.c_dt, dense, p.n, pair_rows(pair), std::min(kBlock, p.n - col), c.sums, c.scale, col};
  }
  // kBlock floats, zeros beyond the columns there are.
  const float* bias(int64_t col) const {
    if (p.bias == nullptr) return nullptr;
    float* row = scratch_floats(Scratch::kRowA, kBlock);
    std::fill_n(row, kBlock, 0.0f);
    widen(static_cast<const bf16*>(p.bias) + col, std::min(kBlock, p.n - col), row);
    return row;
  }
};

// Asks for the sums that a block's rows are added to, which its product hides. Always inlined, as
// ask_for_next(), since GCC drops calls of a function that only prefetches.
[[gnu::always_inline]] inline void ask_for_sums(const BlockTarget& target) {
  for (int64_t r = 0; target.sums != nullptr && r < target.rows; ++r) {
    __builtin_prefetch(target.sum(r), 1, 2);
    __builtin_prefetch(target.sum(r) + kTileSide, 1, 2);
  }
}

// ---- forward: blocks of w by blocks of rows ----

bool in_place(const BlockUse& use, const Chunk& c, int64_t col) {
  return c.pairs <= use.in_place_pairs && col + kBlock <= c.p.n && c.p.k % kBlock == 0;
}

// Rows [col, col + kBlock) of w at `steps` steps from s on, as they lie or packed.
BlockProduct weight_rows(const Chunk& c, int64_t col, int64_t s, int64_t steps, bool as_they_lie) {
  const Product& p = c.p;
  BlockProduct product{};
  product.steps = steps;
  product.add = s > 0;
  product.rows = std::min(kBlock, p.n - col);
  if (as_they_lie) {
    product.left = reinterpret_cast<const std::byte*>(c.weights() + col * p.ldb + s * kBlock);
    product.row_stride = p.ldb * int64_t{sizeof(bf16)};
    product.tile_stride = kTileSide * product.row_stride;
    product.step_stride = 64;
    return product;
  }
  std::byte* packed = scratch_bytes(Scratch::kPacked, kSlabBytes);
  pack_left_rows(c.form, {c.weights() + col * p.ldb + s * kBlock, p.ldb, product.rows,
                  std::min(steps * kBlock, p.k - s * kBlock)},
                 packed);
  set_packed_left(product, c.form, packed);
  return product;
}

// The lines that the product of a pair prefetches: its share of the next panel's weights, at its
// own steps. Weights that are read once, in order, need no prefetch.
Ahead rows_ahead(const Chunk& c, int64_t col, int64_t s, int64_t pair) {
  if (c.pairs == 1 || col + 2 * kBlock > c.p.n) return {};
  const int64_t first = kBlock * pair / c.pairs, last = kBlock * (pair + 1) / c.pairs;
  const int64_t row_bytes = c.p.ldb * int64_t{sizeof(bf16)};
  const bf16* next = c.weights() + (col + kBlock + first) * c.p.ldb + s * kBlock;
  return {reinterpret_cast<const std::byte*>(next), last - first, row_bytes, 64};
}

void forward_panels(const BlockSession& session, const Chunk& c, int64_t begin, int64_t end) {
  float* sums = scratch_floats(Scratch::kTile, c.pairs * kBlockFloats);
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t col = panel * kBlock;
    const bool as_they_lie = in_place(session.use(), c, col);
    const float* bias = c.bias(col);
    const int64_t slab = as_they_lie && c.pairs <= kWholeDepthPairs ? c.steps : slab_steps(c.form);
    for (int64_t s = 0; s < c.steps; s += slab) {
      BlockProduct product = weight_rows(c, col, s, std::min(slab, c.steps - s), as_they_lie);
      for (int64_t pair = 0; pair < c.pairs; ++pair) {
        set_right(product, c.form, c.of_pair(pair) + s * c.step_bytes());
        product.cols = c.pair_rows(pair);
        product.sums = sums + pair * kBlockFloats;
        if (panel + 1 < end) product.ahead = rows_ahead(c, col, s, pair);
        const bool last = s + slab >= c.steps;
        if (last) ask_for_sums(c.target(pair, col));
        session.multiply(product);
        if (last) store_sums(product.sums, true, bias, c.target(pair, col));
      }
    }
  }
}

// ---- input gradient: blocks of rows by blocks of columns of w ----

// Blocks [first, first + count) of columns of w, and the sums that they have with all rows while w
// is read from its first row to its last.
struct Stripe {
  const Chunk& c;
  int64_t first, count;
  float* sums;       // (pairs, count) blocks
  std::byte* slabs;  // packed: count of kSlabBytes

  float* sums_of(int64_t pair, int64_t block) const {
    return sums + (pair * count + block) * kBlockFloats;
  }
  std::byte* slab_of(int64_t block) const { return slabs + block * kSlabBytes; }
  int64_t column(int64_t block) const { return (first + block) * kBlock; }
};

// Packs `steps` steps of w from s on.
void pack_slab(const Stripe& stripe, int64_t s, int64_t steps) {
  const Product& p = stripe.c.p;
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t row = (s + i) * kBlock;
    const int64_t whole =
        row + kBlock > p.k ? 0 : std::min(stripe.count, p.n / kBlock - stripe.first);
    const bf16* at = stripe.c.weights() + row * p.ldb + stripe.column(0);
    const int64_t step = i * stripe.c.step_bytes();
    pack_right_stretch(stripe.c.form, {at, p.ldb, kBlock, whole * kBlock}, kSlabBytes,
                       stripe.slab_of(0) + step);
    for (int64_t b = whole; b < stripe.count; ++b) {
      pack_right_columns(stripe.c.form,
                         block_of(stripe.c.weights(), p.ldb, row, p.k, stripe.column(b), p.n),
                         stripe.slab_of(b) + step);
    }
  }
}

// The same for one block, into the first slab: it is used at once and stays in the L1 cache.
void pack_columns(const Stripe& stripe, int64_t s, int64_t steps, int64_t block) {
  const Product& p = stripe.c.p;
  for (int64_t i = 0; i < steps; ++i) {
    pack_right_columns(stripe.c.form,
                       block_of(stripe.c.weights(), p.ldb, (s + i) * kBlock, p.k,
                                stripe.column(block), p.n),
                       stripe.slabs + i * stripe.c.step_bytes());
  }
}

// The lines that the product of a pair prefetches: its share of the block's columns in the slab
// after the one from s on.
Ahead columns_ahead(const Stripe& stripe, int64_t s, int64_t steps, int64_t block, int64_t pair) {
  const Product& p = stripe.c.p;
  if ((s + 2 * steps) * kBlock > p.k) return {};
  const int64_t first = kBlock * pair / stripe.c.pairs, last = kBlock * (pair + 1) / stripe.c.pairs;
  const int64_t row_bytes = p.ldb * int64_t{sizeof(bf16)};
  const bf16* next = stripe.c.weights() + ((s + steps) * kBlock + first) * p.ldb;
  return {reinterpret_cast<const std::byte*>(next + stripe.column(block)), last - first, row_bytes,
          kBlock * row_bytes};
}

void add_slab(const BlockSession& session, const Stripe& stripe, int64_t s, int64_t steps) {
  const Chunk& c = stripe.c;
  const bool ask = session.use().ask_for_columns;
  if (!ask) pack_slab(stripe, s, steps);
  BlockProduct product{};
  product.steps = steps;
  product.add = s > 0;
  for (int64_t b = 0; b < stripe.count; ++b) {
    if (ask) pack_columns(stripe, s, steps, b);
    set_right(product, c.form, ask ? stripe.slabs : stripe.slab_of(b));
    product.cols = std::min(kBlock, c.p.n - stripe.column(b));
    for (int64_t pair = 0; pair < c.pairs; ++pair) {
      set_packed_left(product, c.form, c.of_pair(pair) + s * c.step_bytes());
      product.rows = c.pair_rows(pair);
      product.sums = stripe.sums_of(pair, b);
      if (ask) product.ahead = columns_ahead(stripe, s, steps, b, pair);
      if (s + steps >= c.steps) ask_for_sums(c.target(pair, stripe.column(b)));
      session.multiply(product);
    }
  }
}

// Blocks [begin, end) of columns of w.
void input_stripes(const BlockSession& session, const Chunk& c, int64_t begin, int64_t end) {
  const int64_t width =
      std::clamp<int64_t>(session.use().stripe_sums / c.pairs, 1, session.use().stripe_blocks);
  float* sums = scratch_floats(Scratch::kTile, c.pairs * width * kBlockFloats);
  std::byte* slabs = scratch_bytes(Scratch::kPacked, width * kSlabBytes);
  for (int64_t first = begin; first < end; first += width) {
    const Stripe stripe{c, first, std::min(width, end - first), sums, slabs};
    const int64_t slab = slab_steps(c.form);
    for (int64_t s = 0; s < c.steps; s += slab) {
      add_slab(session, stripe, s, std::min(slab, c.steps - s));
    }
    for (int64_t b = 0; b < stripe.count; ++b) {
      const float* bias = c.bias(stripe.column(b));
      for (int64_t pair = 0; pair < c.pairs; ++pair) {
        store_sums(stripe.sums_of(pair, b), false, bias, c.target(pair, stripe.column(b)));
      }
    }
  }
}

// ---- both ----

void multiply_chunk(const BlockKernel& kernel, Chunk c, ThreadPool& pool) {
  const Product& p = c.p;
  std::byte* packed = scratch_bytes(Scratch::kSharedLeft, c.pairs * c.steps * c.step_bytes());
  const InputRows a = p.a.from(c.row, p.k * int64_t{sizeof(bf16)});
  pack_all(pool, c.pairs, c.rows * p.k, [&](int64_t pair) {
    std::byte* to = packed + pair * c.steps * c.step_bytes();
    if (!p.transposed) {
      BlockRows rows = block_of(a, p.k, pair * kBlock, c.rows, 0, p.k);
      rows.cols = p.k;
      return pack_left_rows(c.form, rows, to);
    }
    for (int64_t s = 0; s < c.steps; ++s) {
      pack_right_rows(c.form, block_of(a, p.k, pair * kBlock, c.rows, s * kBlock, p.k),
                      to + s * c.step_bytes());
    }
  });
  c.packed = packed;
  for_stretches(kernel, pool, blocks_of(p.n),
                [&](const BlockSession& session, int64_t begin, int64_t end) {
                  (p.transposed ? forward_panels : input_stripes)(session, c, begin, end);
                });
}

// ---- weight gradient ----

struct PackedGradient {
  const WeightGradient& g;
  int64_t out0, outs, steps;
  StepForm form;
  const std::byte *left, *right;

  BlockTarget target(int64_t panel, int64_t col) const {
    const int64_t row = panel * kBlock;
    return {DType::kF32, g.dw + (out0 + row) * g.in + col, g.in, std::min(kBlock, outs - row),
            std::min(kBlock, g.in - col)};
  }
};

// Asks for the sums that the next block is added to: its rows lie far apart, so that the processor
// does not foresee them. BlockProduct::ahead has one line of a row for each step, and a product of
// few rows has one step.
[[gnu::always_inline]] inline void ask_for_next(const PackedGradient& packed, int64_t panel,
                                                int64_t col, int64_t end) {
  col += kBlock;
  if (col >= packed.g.in) {
    col = 0;
    if (++panel == end) return;
  }
  const BlockTarget next = packed.target(panel, col);
  const auto* row = static_cast<const float*>(next.at);
  for (int64_t r = 0; r < next.rows; ++r, row += next.stride) {
    __builtin_prefetch(row, 1);
    __builtin_prefetch(row + kTileSide, 1);
  }
}

// Sums that begin dw are not wanted in the cache, where their rows are whole lines of it.
void store_gradient(const BlockSession& session, const float* sums, bool add,
                    const BlockTarget& target) {
  auto* out = static_cast<float*>(target.at);
  const bool whole = target.rows == kBlock && target.cols == kBlock;
  const bool lines = reinterpret_cast<uintptr_t>(out) % 64 == 0 && target.stride % kTileSide == 0;
  if (!add && whole && lines) return session.write(sums, out, target.stride);
  add_sums(sums, add, target);
}

// Rows [out0 + begin * kBlock, out0 + end * kBlock) of dw.
void gradient_panels(const BlockSession& session, const PackedGradient& packed, int64_t begin,
                     int64_t end) {
  const WeightGradient& g = packed.g;
  alignas(64) float sums[kBlockFloats];
  BlockProduct product{};
  product.steps = packed.steps;
  product.sums = sums;
  product.last_depth = g.rows - (packed.steps - 1) * kBlock;
  const int64_t operand_bytes = packed.steps * step_bytes(packed.form);
  for (int64_t panel = begin; panel < end; ++panel) {
    set_packed_left(product, packed.form, packed.left + panel * operand_bytes);
    product.rows = std::min(kBlock, packed.outs - panel * kBlock);
    for (int64_t col = 0; col < g.in; col += kBlock) {
      set_right(product, packed.form, packed.right + col / kBlock * operand_bytes);
      product.cols = std::min(kBlock, g.in - col);
      if (g.add) ask_for_next(packed, panel, col, end);
      session.multiply(product);
      store_gradient(session, sums, g.add, packed.target(panel, col));
    }
  }
}

constexpr int64_t kGradientRows = 4096;  // rows of dw at once: their packed operands stay small

void add_gradient_rows(const BlockKernel& kernel, const WeightGradient& g, int64_t out0,
                       int64_t outs, const std::byte* right, ThreadPool& pool) {
  const int64_t steps = blocks_of(g.rows), panels = blocks_of(outs);
  const int64_t operand_bytes = steps * step_bytes(kernel.form);
  std::byte* left = scratch_bytes(Scratch::kSharedLeft, panels * operand_bytes);
  pack_all(pool, panels, g.rows * outs, [&](int64_t panel) {
    for (int64_t s = 0; s < steps; ++s) {
      pack_left_columns(
          kernel.form,
          block_of(g.dy, g.out, s * kBlock, g.rows, out0 + panel * kBlock, out0 + outs),
          left + panel * operand_bytes + s * step_bytes(kernel.form));
    }
  });
  const PackedGradient packed{g, out0, outs, steps, kernel.form, left, right};
  for_stretches(kernel, pool, panels,
                [&](const BlockSession& session, int64_t begin, int64_t end) {
                  gradient_panels(session, packed, begin, end);
                });
}

}  // namespace

void multiply_blocks(const BlockKernel& kernel, const Product& p, ThreadPool& pool) {
  const int64_t height = chunk_rows(p.k), steps = blocks_of(p.k);
  for (int64_t row = 0; row < p.m; row += height) {
    const int64_t rows = std::min(height, p.m - row);
    multiply_chunk(kernel, {p, row, rows, blocks_of(rows), steps, kernel.form, nullptr}, pool);
  }
}

void add_gradient_blocks(const BlockKernel& kernel, const WeightGradient& g, ThreadPool& pool) {
  const int64_t steps = blocks_of(g.rows), columns = blocks_of(g.in);
  const int64_t operand_bytes = steps * step_bytes(kernel.form);
  std::byte* right = scratch_bytes(Scratch::kSharedPacked, columns * operand_bytes);
  pack_all(pool, columns, g.rows * g.in, [&](int64_t column) {
    for (int64_t s = 0; s < steps; ++s) {
      pack_right_columns(kernel.form,
                         block_of(g.x, g.in, s * kBlock, g.rows, column * kBlock, g.in),
                         right + column * operand_bytes + s * step_bytes(kernel.form));
    }
  });
  for (int64_t out0 = 0; out0 < g.out; out0 += kGradientRows) {
    add_gradient_rows(kernel, g, out0, std::min(kGradientRows, g.out - out0), right, pool);
  }
}

// ---- the choice ----

namespace {

// Limits within which blocks are better than gemm.h, on all kernels.
constexpr int64_t kMostDepth = 8192;    // beyond, too few rows are packed for each reading of w
constexpr int64_t kFewestColumns = 64;  // below, there are too few panels to share out

}  // namespace

const BlockKernel* gradient_kernel(DType dt) {
  if (dt != DType::kBF16 || block_kernels().empty()) return nullptr;
  return block_kernels().front();
}

const BlockKernel* product_kernel(const Product& p) {
  return p.k <= kMostDepth && p.n >= kFewestColumns ? gradient_kernel(p.dt) : nullptr;
}

std::string products_kernel() {
  return block_kernels().empty() ? "none" : block_kernels().front()->name;
}

std::string products_build() {
  if (block_kernels().empty()) return "no products by blocks";
  const bool two = block_kernels().front()->sum == BlockSum::kTwoChains;
  return strf("bf16 by blocks of %lld in %s, from %lld columns and to depth %lld",
              static_cast<long long>(kBlock), two ? "two chains" : "one chain",
              static_cast<long long>(kFewestColumns), static_cast<long long>(kMostDepth));
}

ScratchNeed products_scratch(int64_t most_in) {
  constexpr int64_t kChunk = std::max(kSharedBytes, kMostDepth * kBlock * int64_t{sizeof(bf16)});
  constexpr int64_t kGradientSteps = kRowBlock / kBlock;  // the most steps of a call
  constexpr int64_t kGradientLeft = kGradientRows / kBlock * kGradientSteps * kStepBytes;
  const bool any = !block_kernels().empty();
  const BlockUse use = any ? block_kernels().front()->use : BlockUse{};
  const int64_t widening = any ? step_bytes(block_kernels().front()->form) / kStepBytes : 1;
  const int64_t sums = std::max(use.stripe_sums, kMaxRows / kBlock) * kBlockFloats * 4;
  const int64_t slabs = use.stripe_blocks * kSlabBytes;
  return {widening * std::max(kChunk, kGradientLeft),
          widening * blocks_of(most_in) * kGradientSteps * kStepBytes, 0, sums + slabs + kIoAlign};
}

}  // namespace pagoda
