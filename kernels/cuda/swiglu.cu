// SwiGLU and its gradient (kernels/cpu/swiglu.cc has the formulas).
#include "kernels/cuda/machine/reduce.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// Gate and up as they multiply, and whether the shape's limits cut them.
struct GateUp {
  float gate, up;
  bool gate_cut, up_cut;
  PAGODA_GPU GateUp(const SwigluShape& shape, float g, float u)
      : gate(g > shape.limit ? shape.limit : g),
        up((u > shape.limit    ? shape.limit
            : u < -shape.limit ? -shape.limit
                               : u)),
        gate_cut(g > shape.limit),
        up_cut(u > shape.limit || u < -shape.limit) {
    if (shape.offset != 0.0f) up += shape.offset;
  }
};

template <typename T>
struct Activate {
  SwigluShape shape;
  const T* gate_up;
  int64_t f;
  T* out;
  PAGODA_GPU void operator()(int64_t t, int64_t j) const {
    const GateUp x(shape, widen(gate_up[t * 2 * f + j]), widen(gate_up[t * 2 * f + f + j]));
    out[t * f + j] = rounded<T>(x.gate * sigmoid_of(shape.slope * x.gate) * x.up);
  }
};

// A block a row. Elements are read before they are written: dgate_up may alias gate_up.
template <typename T>
struct ActivateBackward {
  static constexpr int kThreads = 256, kSharedBytes = kThreads / kWarp * 4;
  SwigluShape shape;
  const T *gate_up, *dact;
  const float* row_scale;
  int64_t f;
  T *dgate_up, *scaled_act;
  float* dscale;

  PAGODA_GPU void operator()() const {
    const int64_t t = block_number();
    const float scale = row_scale != nullptr ? row_scale[t] : 1.0f;
    float sum = 0.0f;
    for (int64_t j = thread_number(); j < f; j += kThreads) {
      const GateUp x(shape, widen(gate_up[t * 2 * f + j]), widen(gate_up[t * 2 * f + f + j]));
      const float g = x.gate, u = x.up, turn = shape.slope * g;
      const float gradient = widen(dact[t * f + j]), sigmoid = sigmoid_of(turn);
      const float act = as_stored<T>(g * sigmoid * u), d = gradient * scale;
      sum += gradient * act;
      if (scaled_act != nullptr) scaled_act[t * f + j] = rounded<T>(act * scale);
      const float dgate = d * u * sigmoid * (1.0f + turn * (1.0f - sigmoid));
      dgate_up[t * 2 * f + j] = rounded<T>(x.gate_cut ? 0.0f : dgate);
      dgate_up[t * 2 * f + f + j] = rounded<T>(x.up_cut ? 0.0f : d * (g * sigmoid));
    }
    if (row_scale == nullptr) return;
    sum = join_block<kThreads>(sum, Sum(), reinterpret_cast<float*>(shared_memory()));
    if (thread_number() == 0) dscale[t] = sum;
  }
};

}  // namespace

void CudaOps::swiglu(DType dt, const SwigluShape& shape, const void* gate_up, int64_t n, int64_t f,
                     void* out, Stream& s) {
  CHECK(n >= 0 && f > 0);
  Queue queue(s, "swiglu");
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, n, f, Activate<T>{shape, typed<T>(gate_up), f, typed<T>(out)});
  });
}

void CudaOps::swiglu_backward(DType dt, const SwigluShape& shape, const void* gate_up,
                              const void* dact, const float* row_scale, int64_t n, int64_t f,
                              void* dgate_up, void* scaled_act, float* dscale, Stream& s) {
  CHECK(n >= 0 && f > 0);
  CHECK(row_scale == nullptr || dscale != nullptr);
  Queue queue(s, "swiglu_backward");
  with_type(dt, [&]<typename T>(T) {
    queue.launch(n, ActivateBackward<T>{shape, typed<T>(gate_up), typed<T>(dact), row_scale, f,
                                        typed<T>(dgate_up), typed<T>(scaled_act), dscale});
  });
}

}  // namespace pagoda::PAGODA_MACHINE
