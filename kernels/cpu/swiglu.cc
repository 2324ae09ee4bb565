// SwiGLU (Shazeer 2020), with the changes of gpt-oss (SwigluShape). With gate and up cut to g and
// v, s = sigmoid(slope g) and u = v + offset:
//   act = g s u,  dg = d u s (1 + slope g (1 - s)),  du = d g s,  and 0 where they were cut.
// The plain one has a slope of 1, no limits and no offset. None of these changes a bit then, but
// selecting lanes takes as long as the sigmoid, so it is compiled without them.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

bool is_plain(const SwigluShape& shape) {
  constexpr SwigluShape kPlain;
  return shape.slope == kPlain.slope && shape.limit == kPlain.limit &&
         shape.offset == kPlain.offset;
}

// Gate and up as they multiply.
template <bool kPlain>
PAGODA_INLINE Vec gate_of(const SwigluShape& shape, Vec gate) {
  if constexpr (kPlain) return gate;
  return gate > shape.limit ? splat(shape.limit) : gate;
}
template <bool kPlain>
PAGODA_INLINE Vec up_of(const SwigluShape& shape, Vec up) {
  if constexpr (kPlain) return up;
  const Vec below = up > shape.limit ? splat(shape.limit) : up;
  const Vec cut = up < -shape.limit ? splat(-shape.limit) : below;
  return shape.offset != 0.0f ? cut + shape.offset : cut;  // -0 stays
}
template <bool kPlain>
PAGODA_INLINE Vec turn_of(const SwigluShape& shape, Vec gate) {
  if constexpr (kPlain) return gate;
  return shape.slope * gate;
}

template <bool kPlain, typename T>
PAGODA_INLINE void activate_row(const SwigluShape& shape, const T* gate, int64_t f, T* out) {
  for_lanes(f, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    const Vec g = gate_of<kPlain>(shape, load_lanes(gate + i, count));
    const Vec u = up_of<kPlain>(shape, load_lanes(gate + f + i, count));
    store_lanes(out + i, g * sigmoid_lanes(turn_of<kPlain>(shape, g)) * u, count);
  });
}

PAGODA_TARGET_CLONES void activate(DType dt, const SwigluShape& shape, const void* gate_up,
                                   int64_t f, void* out) {
  const bool plain = is_plain(shape);
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* gate = static_cast<const T*>(gate_up);
    plain ? activate_row<true>(shape, gate, f, static_cast<T*>(out))
          : activate_row<false>(shape, gate, f, static_cast<T*>(out));
  });
}

struct Backward {
  DType dt;
  SwigluShape shape;
  const void* gate_up;
  const void* dact;
  const float* row_scale;
  int64_t f;
  void* dgate_up;
  void* scaled_act;
  float* dscale;
};

// A piece of a row is read before it is written: dgate_up may alias gate_up. Returns the sum of
// gradients times activations.
template <bool kPlain, typename T>
PAGODA_INLINE Vec backward_lanes(const Backward& b, int64_t t, float scale) {
  const SwigluShape shape = b.shape;
  const int64_t f = b.f;
  const T* gate = static_cast<const T*>(b.gate_up) + t * 2 * f;
  const T* dact = static_cast<const T*>(b.dact) + t * f;
  T* dgate = static_cast<T*>(b.dgate_up) + t * 2 * f;
  T* scaled_act = b.scaled_act != nullptr ? static_cast<T*>(b.scaled_act) + t * f : nullptr;
  Vec sum{};
  for_lanes(f, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    const Vec whole = load_lanes(gate + i, count), up = load_lanes(gate + f + i, count);
    const Vec g = gate_of<kPlain>(shape, whole), u = up_of<kPlain>(shape, up);
    const Vec turn = turn_of<kPlain>(shape, g), sigmoid = sigmoid_lanes(turn);
    const Vec gradient = load_lanes(dact + i, count);
    const Vec act = as_stored<T>(g * sigmoid * u), d = gradient * scale;
    sum += gradient * act;
    if (scaled_act != nullptr) store_lanes(scaled_act + i, act * scale, count);
    Vec dg = d * u * sigmoid * (1.0f + turn * (1.0f - sigmoid));
    Vec du = d * (g * sigmoid);
    if constexpr (!kPlain) {
      dg = whole > shape.limit ? Vec{} : dg;
      const auto cut = (up > shape.limit) | (up < -shape.limit);
      du = cut ? Vec{} : du;
    }
    store_lanes(dgate + i, dg, count);
    store_lanes(dgate + f + i, du, count);
  });
  return sum;
}

PAGODA_TARGET_CLONES void backward_row(const Backward& b, int64_t t) {
  const float scale = b.row_scale ? b.row_scale[t] : 1.0f;
  const bool plain = is_plain(b.shape);
  with_type(b.dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const Vec sum =
        plain ? backward_lanes<true, T>(b, t, scale) : backward_lanes<false, T>(b, t, scale);
    if (b.row_scale) b.dscale[t] = sum_lanes(sum);
  });
}

}  // namespace

void CpuOps::swiglu(DType dt, const SwigluShape& shape, const void* gate_up, int64_t n, int64_t f,
                    void* out, Stream& s) {
  CHECK(n >= 0 && f > 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, rows_per_block(2 * f), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        activate(dt, shape, at(dt, gate_up, t * 2 * f), f, at(dt, out, t * f));
      }
    });
  });
}

void CpuOps::swiglu_backward(DType dt, const SwigluShape& shape, const void* gate_up,
                             const void* dact, const float* row_scale, int64_t n, int64_t f,
                             void* dgate_up, void* scaled_act, float* dscale, Stream& s) {
  CHECK(n >= 0 && f > 0);
  CHECK(row_scale == nullptr || dscale != nullptr);
  const Backward b{dt, shape, gate_up, dact, row_scale, f, dgate_up, scaled_act, dscale};
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, rows_per_block(4 * f), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) backward_row(b, t);
    });
  });
}

}  // namespace pagoda
