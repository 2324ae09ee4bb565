// The gated short convolution and its gradient (kernels/cpu/short_conv.cc has the formulas).
#include "kernels/cuda/machine/column_sums.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// Rows of [b | c | x] and what taps read of them.
template <typename T>
struct Gated {
  const int32_t* positions;
  const T *bcx, *taps;
  int64_t dim, width;

  PAGODA_GPU float b(int64_t t, int64_t i) const { return widen(bcx[t * 3 * dim + i]); }
  PAGODA_GPU float c(int64_t t, int64_t i) const { return widen(bcx[t * 3 * dim + dim + i]); }
  PAGODA_GPU float x(int64_t t, int64_t i) const { return widen(bcx[t * 3 * dim + 2 * dim + i]); }
  PAGODA_GPU float u(int64_t t, int64_t i) const { return as_stored<T>(b(t, i) * x(t, i)); }
  PAGODA_GPU float tap(int64_t i, int64_t j) const { return widen(taps[i * width + j]); }
  PAGODA_GPU float convolved(int64_t t, int64_t i) const {
    float sum = 0.0f;
    for (int64_t j = 0; j < width; ++j) {
      const int64_t k = width - 1 - j;
      if (positions[t] >= k) sum += tap(i, j) * u(t - k, i);
    }
    return sum;
  }
};

template <typename T>
struct ShortConv {
  Gated<T> in;
  T* out;
  PAGODA_GPU void operator()(int64_t t, int64_t i) const {
    out[t * in.dim + i] = rounded<T>(in.c(t, i) * in.convolved(t, i));
  }
};

template <typename T>
struct ShortConvBackward {
  Gated<T> in;
  const T* dout;
  int64_t tokens;
  T* dbcx;
  PAGODA_GPU void operator()(int64_t t, int64_t i) const {
    const int64_t dim = in.dim;
    float du = 0.0f;
    for (int64_t j = 0; j < in.width; ++j) {
      const int64_t later = t + in.width - 1 - j;
      if (later >= tokens || in.positions[later] < later - t) continue;
      du += in.tap(i, j) * (widen(dout[later * dim + i]) * in.c(later, i));
    }
    T* row = dbcx + t * 3 * dim + i;
    row[0] = rounded<T>(du * in.x(t, i));
    row[dim] = rounded<T>(widen(dout[t * dim + i]) * in.convolved(t, i));
    row[2 * dim] = rounded<T>(du * in.b(t, i));
  }
};

// Column i * width + j of dtaps.
template <typename T>
struct TapTerm {
  Gated<T> in;
  const T* dout;
  PAGODA_GPU float operator()(int64_t t, int64_t column) const {
    const int64_t i = quotient(column, in.width), k = in.width - 1 - (column - i * in.width);
    if (in.positions[t] < k) return 0.0f;
    return widen(dout[t * in.dim + i]) * in.c(t, i) * in.u(t - k, i);
  }
};

// The slots of sequences' states and which tokens of a call are of one sequence.
template <typename T>
struct ConvState {
  const int32_t *sequence, *position;
  int64_t tokens, dim, slots;
  T* state;
  PAGODA_GPU bool is_new(int64_t t, int64_t other) const {
    return other >= 0 && other < tokens && sequence[other] == sequence[t];
  }
  PAGODA_GPU T* slot(int64_t t, int64_t p) const {
    return state + (sequence[t] * slots + p % slots) * dim;
  }
};

template <typename T>
struct CachedShortConv {
  Gated<T> in;
  ConvState<T> old;
  T* out;
  PAGODA_GPU void operator()(int64_t t, int64_t i) const {
    float sum = 0.0f;
    for (int64_t j = 0; j < in.width; ++j) {
      const int64_t k = in.width - 1 - j;
      if (in.positions[t] < k) continue;
      const float u = old.is_new(t, t - k) ? in.u(t - k, i)
                                           : widen(old.slot(t, in.positions[t] - k)[i]);
      sum += in.tap(i, j) * u;
    }
    out[t * in.dim + i] = rounded<T>(in.c(t, i) * sum);
  }
};

template <typename T>
struct StoreProducts {
  Gated<T> in;
  ConvState<T> state;
  PAGODA_GPU void operator()(int64_t t, int64_t i) const {
    if (state.is_new(t, t + state.slots)) return;
    state.slot(t, in.positions[t])[i] = rounded<T>(in.u(t, i));
  }
};

}  // namespace

void CudaOps::short_conv(DType dt, const int32_t* positions, const void* bcx, const void* taps,
                         int64_t tokens, int64_t dim, int64_t width, void* out, Stream& s) {
  CHECK(tokens >= 0 && dim > 0 && width >= 2 && width <= kMaxConvWidth);
  Queue queue(s, "short_conv");
  with_type(dt, [&]<typename T>(T) {
    const Gated<T> in{positions, typed<T>(bcx), typed<T>(taps), dim, width};
    for_each_element(queue, tokens, dim, ShortConv<T>{in, typed<T>(out)});
  });
}

void CudaOps::short_conv_backward(DType dt, const int32_t* positions, const void* bcx,
                                  const void* taps, const void* dout, int64_t tokens, int64_t dim,
                                  int64_t width, void* dbcx, float* dtaps, Stream& s) {
  CHECK(tokens >= 0 && dim > 0 && width >= 2 && width <= kMaxConvWidth && dbcx != bcx);
  Queue queue(s, "short_conv_backward");
  with_type(dt, [&]<typename T>(T) {
    const Gated<T> in{positions, typed<T>(bcx), typed<T>(taps), dim, width};
    add_column_sums(queue, TapTerm<T>{in, typed<T>(dout)}, tokens, kRowBlock, dim * width, dtaps);
    for_each_element(queue, tokens, dim,
                     ShortConvBackward<T>{in, typed<T>(dout), tokens, typed<T>(dbcx)});
  });
}

void CudaOps::cached_short_conv(DType dt, const int32_t* sequence, const int32_t* position,
                                const void* bcx, const void* taps, int64_t tokens, int64_t dim,
                                int64_t width, void* state, void* out, Stream& s) {
  CHECK(tokens >= 0 && dim > 0 && width >= 2 && width <= kMaxConvWidth);
  Queue queue(s, "cached_short_conv");
  with_type(dt, [&]<typename T>(T) {
    const Gated<T> in{position, typed<T>(bcx), typed<T>(taps), dim, width};
    const ConvState<T> rows{sequence, position, tokens, dim, width - 1, typed<T>(state)};
    for_each_element(queue, tokens, dim, CachedShortConv<T>{in, rows, typed<T>(out)});
    // Only now, since earlier tokens read what these replace.
    for_each_element(queue, tokens, dim, StoreProducts<T>{in, rows});
  });
}

}  // namespace pagoda::PAGODA_MACHINE
