// The gated short convolution of LFM2 (Liquid AI 2025). With k = width - 1 - j rows between a tap's
// row and t, u = b x and g[t] = dout[t] c[t]:
//   conv[t] = sum of taps[j] u[t - k]      out = c conv         dc = dout conv
//   du[t]   = sum of taps[j] g[t + k]      db = du x, dx = du b      dtaps[j] = sum g[t] u[t - k]
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

// (width, dim) fp32: a tap's numbers behind one another.
void by_tap(DType dt, const void* taps, int64_t dim, int64_t width, float* out) {
  const float* row = read_row(dt, taps, dim * width, Scratch::kRowA);
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t j = 0; j < width; ++j) out[j * dim + i] = row[i * width + j];
  }
}

// `count` numbers of u of a row of bcx, from the i-th on.
template <typename T>
PAGODA_INLINE Vec product_lanes(const T* row, int64_t dim, int64_t i, int64_t count) {
  return as_stored<T>(load_lanes(row + i, count) * load_lanes(row + 2 * dim + i, count));
}

struct Convolution {
  DType dt;
  const void* bcx;
  const float* taps;  // by_tap
  int64_t dim, width;
};

// Where a tap reads: a row of bcx, or u itself, which an earlier call stored. Neither: nothing.
struct Source {
  const void* bcx = nullptr;
  const void* stored = nullptr;
};

template <typename T>
PAGODA_INLINE Vec convolve_lanes(const Convolution& c, const Source* sources, int64_t i,
                                 int64_t count) {
  Vec sum{};
  for (int64_t j = 0; j < c.width; ++j) {
    const Source& from = sources[j];
    const Vec tap = load_lanes(c.taps + j * c.dim + i, count);
    if (from.bcx != nullptr) {
      sum += tap * product_lanes(static_cast<const T*>(from.bcx), c.dim, i, count);
    } else if (from.stored != nullptr) {
      sum += tap * load_lanes(static_cast<const T*>(from.stored) + i, count);
    }
  }
  return sum;
}

PAGODA_TARGET_CLONES void convolve_row(const Convolution& c, const Source* sources, int64_t t,
                                       void* out) {
  with_type(c.dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* gate = static_cast<const T*>(c.bcx) + t * 3 * c.dim + c.dim;
    for_lanes(c.dim, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec sum = convolve_lanes<T>(c, sources, i, count);
      store_lanes(static_cast<T*>(out) + i, load_lanes(gate + i, count) * sum, count);
    });
  });
}

// The rows of t's document that its taps read.
void rows_before(const Convolution& c, int32_t position, int64_t t, Source* sources) {
  for (int64_t j = 0; j < c.width; ++j) {
    const int64_t k = c.width - 1 - j;
    sources[j] = {};
    if (position >= k) sources[j].bcx = at(c.dt, c.bcx, (t - k) * 3 * c.dim);
  }
}

struct Backward {
  Convolution c;
  const int32_t* positions;
  const void* dout;
  int64_t tokens;
  void* dbcx;
};

// Adds t's part to sums (width, dim).
PAGODA_TARGET_CLONES void backward_row(const Backward& b, const Source* sources, int64_t t,
                                       float* sums) {
  const Convolution& c = b.c;
  const int64_t dim = c.dim;
  with_type(c.dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* bcx = static_cast<const T*>(c.bcx) + t * 3 * dim;
    const T* dout = static_cast<const T*>(b.dout) + t * dim;
    T* dbcx = static_cast<T*>(b.dbcx) + t * 3 * dim;
    for_lanes(dim, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec gradient = load_lanes(dout + i, count);
      const Vec g = gradient * load_lanes(bcx + dim + i, count);
      Vec du{};
      for (int64_t j = 0; j < c.width; ++j) {
        const int64_t k = c.width - 1 - j;
        if (sources[j].bcx != nullptr) {
          const Vec u = product_lanes(static_cast<const T*>(sources[j].bcx), dim, i, count);
          store_lanes(sums + j * dim + i, load_lanes(sums + j * dim + i, count) + g * u, count);
        }
        if (t + k >= b.tokens || b.positions[t + k] < k) continue;
        du += load_lanes(c.taps + j * dim + i, count) *
              (load_lanes(dout + k * dim + i, count) *
               load_lanes(bcx + k * 3 * dim + dim + i, count));
      }
      store_lanes(dbcx + dim + i, gradient * convolve_lanes<T>(c, sources, i, count), count);
      store_lanes(dbcx + i, du * load_lanes(bcx + 2 * dim + i, count), count);
      store_lanes(dbcx + 2 * dim + i, du * load_lanes(bcx + i, count), count);
    });
  });
}

// u of row t, into the state.
PAGODA_TARGET_CLONES void store_row(const Convolution& c, int64_t t, void* out) {
  with_type(c.dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* row = static_cast<const T*>(c.bcx) + t * 3 * c.dim;
    for_lanes(c.dim, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      store_lanes(static_cast<T*>(out) + i, product_lanes(row, c.dim, i, count), count);
    });
  });
}

}  // namespace

void CpuOps::short_conv(DType dt, const int32_t* positions, const void* bcx, const void* taps,
                        int64_t tokens, int64_t dim, int64_t width, void* out, Stream& s) {
  CHECK(tokens >= 0 && dim > 0 && width >= 2 && width <= kMaxConvWidth);
  s.enqueue([=, pool = &s.pool()] {
    float* ordered = scratch_floats(Scratch::kSharedSums, width * dim);
    by_tap(dt, taps, dim, width, ordered);
    const Convolution c{dt, bcx, ordered, dim, width};
    for_blocks(*pool, tokens, rows_per_block(3 * dim), [&](int64_t begin, int64_t end) {
      Source sources[kMaxConvWidth];
      for (int64_t t = begin; t < end; ++t) {
        rows_before(c, positions[t], t, sources);
        convolve_row(c, sources, t, at(dt, out, t * dim));
      }
    });
  });
}

void CpuOps::short_conv_backward(DType dt, const int32_t* positions, const void* bcx,
                                 const void* taps, const void* dout, int64_t tokens, int64_t dim,
                                 int64_t width, void* dbcx, float* dtaps, Stream& s) {
  CHECK(tokens >= 0 && dim > 0 && width >= 2 && width <= kMaxConvWidth && dbcx != bcx);
  s.enqueue([=, pool = &s.pool()] {
    const int64_t blocks = div_ceil(tokens, kRowBlock), all = width * dim;
    float* ordered = scratch_floats(Scratch::kSharedSums, (blocks + 1) * all);
    by_tap(dt, taps, dim, width, ordered);
    const Backward b{{dt, bcx, ordered, dim, width}, positions, dout, tokens, dbcx};
    pool->parallel_for(blocks, [&](int64_t block) {
      const int64_t begin = block * kRowBlock, end = std::min(tokens, begin + kRowBlock);
      float* sums = ordered + (block + 1) * all;
      std::fill_n(sums, all, 0.0f);
      Source sources[kMaxConvWidth];
      for (int64_t t = begin; t < end; ++t) {
        rows_before(b.c, positions[t], t, sources);
        backward_row(b, sources, t, sums);
      }
    });
    for (int64_t block = 0; block < blocks; ++block) {
      const float* sums = ordered + (block + 1) * all;
      for (int64_t i = 0; i < dim; ++i) {
        for (int64_t j = 0; j < width; ++j) dtaps[i * width + j] += sums[j * dim + i];
      }
    }
  });
}

void CpuOps::cached_short_conv(DType dt, const int32_t* sequence, const int32_t* position,
                               const void* bcx, const void* taps, int64_t tokens, int64_t dim,
                               int64_t width, void* state, void* out, Stream& s) {
  CHECK(tokens >= 0 && dim > 0 && width >= 2 && width <= kMaxConvWidth);
  s.enqueue([=, pool = &s.pool()] {
    float* ordered = scratch_floats(Scratch::kSharedSums, width * dim);
    by_tap(dt, taps, dim, width, ordered);
    const Convolution c{dt, bcx, ordered, dim, width};
    const int64_t slots = width - 1;
    const auto slot = [&](int64_t t, int64_t p) {
      return at(dt, state, (sequence[t] * slots + p % slots) * dim);
    };
    const auto is_new = [&](int64_t t, int64_t other) {
      return other >= 0 && other < tokens && sequence[other] == sequence[t];
    };
    for_blocks(*pool, tokens, rows_per_block(3 * dim), [&](int64_t begin, int64_t end) {
      Source sources[kMaxConvWidth];
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t j = 0; j < width; ++j) {
          const int64_t k = width - 1 - j;
          sources[j] = {};
          if (position[t] < k) continue;
          if (is_new(t, t - k)) {
            sources[j].bcx = at(dt, bcx, (t - k) * 3 * dim);
          } else {
            sources[j].stored = slot(t, position[t] - k);
          }
        }
        convolve_row(c, sources, t, at(dt, out, t * dim));
      }
    });
    // Only now, since earlier tokens read what these replace.
    for (int64_t t = 0; t < tokens; ++t) {
      if (!is_new(t, t + slots)) store_row(c, t, slot(t, position[t]));
    }
  });
}

}  // namespace pagoda
