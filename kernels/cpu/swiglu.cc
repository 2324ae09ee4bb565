// SwiGLU (Shazeer 2020). With s = sigmoid(g):  act = g s u,  dg = d u s (1 + g (1 - s)),  du = d g
// s.
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vector.h"

namespace pagoda {
namespace {

PAGODA_TARGET_CLONES void activate(const float* gate, const float* up, int64_t n, float* out) {
  for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    const Vec g = load_lanes(gate + i, count), u = load_lanes(up + i, count);
    store_lanes(out + i, g * sigmoid_lanes(g) * u, count);
  });
}

// dgate and dup may be gate and up.
PAGODA_TARGET_CLONES void activate_backward(const float* gate, const float* up, const float* dact,
                                            float scale, int64_t n, float* dgate, float* dup) {
  for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    const Vec g = load_lanes(gate + i, count), u = load_lanes(up + i, count);
    const Vec d = load_lanes(dact + i, count) * scale;
    const Vec sigmoid = sigmoid_lanes(g);
    store_lanes(dgate + i, d * u * sigmoid * (1.0f + g * (1.0f - sigmoid)), count);
    store_lanes(dup + i, d * (g * sigmoid), count);
  });
}

struct Backward {
  DType dt;
  const void* gate_up;
  const void* dact;
  const float* row_scale;
  int64_t f;
  void* dgate_up;
  void* scaled_act;
  float* dscale;
};

void backward_row(const Backward& b, int64_t t) {
  const int64_t f = b.f;
  const float* gate = read_row(b.dt, at(b.dt, b.gate_up, t * 2 * f), 2 * f, Scratch::kRowA);
  const float* up = gate + f;
  const float* dact = read_row(b.dt, at(b.dt, b.dact, t * f), f, Scratch::kRowB);
  const float scale = b.row_scale ? b.row_scale[t] : 1.0f;
  float* act = scratch_floats(Scratch::kRowC, f);
  activate(gate, up, f, act);
  round_through(b.dt, act, f);
  if (b.row_scale) {
    b.dscale[t] = dot(dact, act, f);
    scale_row(act, f, scale, act);
  }
  // Everything is read before the first write: dgate_up may alias gate_up.
  float* result = scratch_floats(Scratch::kRowD, 2 * f);
  activate_backward(gate, up, dact, scale, f, result, result + f);
  if (b.scaled_act) write_row(b.dt, act, f, at(b.dt, b.scaled_act, t * f));
  write_row(b.dt, result, 2 * f, at(b.dt, b.dgate_up, t * 2 * f));
}

}  // namespace

void CpuOps::swiglu(DType dt, const void* gate_up, int64_t n, int64_t f, void* out, Stream& s) {
  CHECK(n >= 0 && f > 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, rows_per_block(2 * f), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float* gate = read_row(dt, at(dt, gate_up, t * 2 * f), 2 * f, Scratch::kRowA);
        float* act = row_to_write(dt, at(dt, out, t * f), f, Scratch::kRowB);
        activate(gate, gate + f, f, act);
        write_row(dt, act, f, at(dt, out, t * f));
      }
    });
  });
}

void CpuOps::swiglu_backward(DType dt, const void* gate_up, const void* dact,
                             const float* row_scale, int64_t n, int64_t f, void* dgate_up,
                             void* scaled_act, float* dscale, Stream& s) {
  CHECK(n >= 0 && f > 0);
  CHECK(row_scale == nullptr || dscale != nullptr);
  const Backward b{dt, gate_up, dact, row_scale, f, dgate_up, scaled_act, dscale};
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, n, rows_per_block(4 * f), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) backward_row(b, t);
    });
  });
}

}  // namespace pagoda
