// SwiGLU (Shazeer 2020), with the changes of gpt-oss (SwigluShape). With gate and up cut to g and
// v, s = sigmoid(slope g) and u = v + offset:
//   act = g s u,  dg = d u s (1 + slope g (1 - s)),  du = d g s,  and 0 where they were cut.
// The plain one has a slope of 1, no limits and no offset; none of these changes a bit then.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

// Gate and up as they multiply.
PAGODA_INLINE Vec gate_of(const SwigluShape& shape, Vec gate) {
  return gate > shape.limit ? splat(shape.limit) : gate;
}
PAGODA_INLINE Vec up_of(const SwigluShape& shape, Vec up) {
  const Vec below = up > shape.limit ? splat(shape.limit) : up;
  const Vec cut = up < -shape.limit ? splat(-shape.limit) : below;
  return shape.offset != 0.0f ? cut + shape.offset : cut;  // -0 stays
}

PAGODA_TARGET_CLONES void activate(DType dt, const SwigluShape& shape, const void* gate_up,
                                   int64_t f, void* out) {
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* gate = static_cast<const T*>(gate_up);
    for_lanes(f, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec g = gate_of(shape, load_lanes(gate + i, count));
      const Vec u = up_of(shape, load_lanes(gate + f + i, count));
      store_lanes(static_cast<T*>(out) + i, g * sigmoid_lanes(shape.slope * g) * u, count);
    });
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

// A piece of a row is read before it is written: dgate_up may alias gate_up.
PAGODA_TARGET_CLONES void backward_row(const Backward& b, int64_t t) {
  const SwigluShape& shape = b.shape;
  const int64_t f = b.f;
  const float scale = b.row_scale ? b.row_scale[t] : 1.0f;
  Vec sum{};
  with_type(b.dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* gate = static_cast<const T*>(b.gate_up) + t * 2 * f;
    const T* dact = static_cast<const T*>(b.dact) + t * f;
    T* dgate = static_cast<T*>(b.dgate_up) + t * 2 * f;
    for_lanes(f, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec whole = load_lanes(gate + i, count), up = load_lanes(gate + f + i, count);
      const Vec g = gate_of(shape, whole), u = up_of(shape, up), turn = shape.slope * g;
      const Vec gradient = load_lanes(dact + i, count), sigmoid = sigmoid_lanes(turn);
      const Vec act = as_stored<T>(g * sigmoid * u), d = gradient * scale;
      sum += gradient * act;
      if (b.scaled_act != nullptr) {
        store_lanes(static_cast<T*>(b.scaled_act) + t * f + i, act * scale, count);
      }
      const Vec dg = d * u * sigmoid * (1.0f + turn * (1.0f - sigmoid));
      const Vec du = d * (g * sigmoid);
      const auto cut = (up > shape.limit) | (up < -shape.limit);
      store_lanes(dgate + i, whole > shape.limit ? Vec{} : dg, count);
      store_lanes(dgate + f + i, cut ? Vec{} : du, count);
    });
  });
  if (b.row_scale) b.dscale[t] = sum_lanes(sum);
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
