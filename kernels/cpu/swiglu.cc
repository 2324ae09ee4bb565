// SwiGLU (Shazeer 2020). With s = sigmoid(g):  act = g s u,  dg = d u s (1 + g (1 - s)),  du = d g
// s. As gpt-oss changes it, with gate and up cut to g and v, s = sigmoid(a g) and u = v + offset:
//   act = g s u,  dg = d u s (1 + a g (1 - s)),  du = d g s,  and 0 where they were cut.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

PAGODA_INLINE Vec cut_above(Vec x, float limit) { return x > limit ? splat(limit) : x; }
PAGODA_INLINE Vec cut_both(Vec x, float limit) {
  return x < -limit ? splat(-limit) : cut_above(x, limit);
}

PAGODA_TARGET_CLONES void activate_changed(DType dt, const SwigluShape& a, const void* gate_up,
                                           int64_t f, void* out) {
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* gate = static_cast<const T*>(gate_up);
    for_lanes(f, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec g = cut_above(load_lanes(gate + i, count), a.limit);
      const Vec u = cut_both(load_lanes(gate + f + i, count), a.limit) + a.offset;
      store_lanes(static_cast<T*>(out) + i, g * sigmoid_lanes(a.slope * g) * u, count);
    });
  });
}

PAGODA_TARGET_CLONES void activate(DType dt, const void* gate_up, int64_t f, void* out) {
  with_type(dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* gate = static_cast<const T*>(gate_up);
    for_lanes(f, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec g = load_lanes(gate + i, count), u = load_lanes(gate + f + i, count);
      store_lanes(static_cast<T*>(out) + i, g * sigmoid_lanes(g) * u, count);
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
  const int64_t f = b.f;
  const float scale = b.row_scale ? b.row_scale[t] : 1.0f;
  Vec sum{};
  with_type(b.dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* gate = static_cast<const T*>(b.gate_up) + t * 2 * f;
    const T* dact = static_cast<const T*>(b.dact) + t * f;
    T* dgate = static_cast<T*>(b.dgate_up) + t * 2 * f;
    for_lanes(f, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec g = load_lanes(gate + i, count), u = load_lanes(gate + f + i, count);
      const Vec gradient = load_lanes(dact + i, count), sigmoid = sigmoid_lanes(g);
      const Vec act = as_stored<T>(g * sigmoid * u), d = gradient * scale;
      sum += gradient * act;
      if (b.scaled_act != nullptr) {
        store_lanes(static_cast<T*>(b.scaled_act) + t * f + i, act * scale, count);
      }
      store_lanes(dgate + i, d * u * sigmoid * (1.0f + g * (1.0f - sigmoid)), count);
      store_lanes(dgate + f + i, d * (g * sigmoid), count);
    });
  });
  if (b.row_scale) b.dscale[t] = sum_lanes(sum);
}

PAGODA_TARGET_CLONES void backward_row_changed(const Backward& b, int64_t t) {
  const SwigluShape& a = b.shape;
  const int64_t f = b.f;
  const float scale = b.row_scale ? b.row_scale[t] : 1.0f;
  Vec sum{};
  with_type(b.dt, [&]<typename T>(T) PAGODA_INLINE_LAMBDA {
    const T* gate = static_cast<const T*>(b.gate_up) + t * 2 * f;
    const T* dact = static_cast<const T*>(b.dact) + t * f;
    T* dgate = static_cast<T*>(b.dgate_up) + t * 2 * f;
    for_lanes(f, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
      const Vec whole = load_lanes(gate + i, count), up = load_lanes(gate + f + i, count);
      const Vec g = cut_above(whole, a.limit), u = cut_both(up, a.limit) + a.offset;
      const Vec gradient = load_lanes(dact + i, count), sigmoid = sigmoid_lanes(a.slope * g);
      const Vec act = as_stored<T>(g * sigmoid * u), d = gradient * scale;
      sum += gradient * act;
      if (b.scaled_act != nullptr) {
        store_lanes(static_cast<T*>(b.scaled_act) + t * f + i, act * scale, count);
      }
      const Vec dg = d * u * sigmoid * (1.0f + a.slope * g * (1.0f - sigmoid));
      const Vec du = d * (g * sigmoid);
      const auto cut = (up > a.limit) | (up < -a.limit);
      store_lanes(dgate + i, whole > a.limit ? Vec{} : dg, count);
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
        const void* row = at(dt, gate_up, t * 2 * f);
        void* act = at(dt, out, t * f);
        shape.plain() ? activate(dt, row, f, act) : activate_changed(dt, shape, row, f, act);
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
      for (int64_t t = begin; t < end; ++t) {
        b.shape.plain() ? backward_row(b, t) : backward_row_changed(b, t);
      }
    });
  });
}

}  // namespace pagoda
