// Linear layers: the products of products.cuh with one weight.
#include "kernels/cuda/ops_class.cuh"
#include "kernels/cuda/shapes.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

struct Layer {
  int64_t rows, depth, columns;
  const void *x, *w, *bias;
  DType y_dt;
  void* y;
};

template <bool kDepthInRows>
void multiply(Queue& queue, Processor processor, DType dt, const Layer& layer) {
  CHECK(layer.rows >= 0 && layer.depth > 0 && layer.columns > 0);
  with_shape(processor, dt, tiles_of(layer.rows, LargeShape::kM) *
                                tiles_of(layer.columns, LargeShape::kN),
             [&]<typename Shape>(Shape) {
    using T = typename Shape::T;
    Esmm<Shape, kDepthInRows> kernel{};
    kernel.x = matrix_of<T>(layer.x, layer.depth);
    kernel.w = matrix_of<T>(layer.w, kDepthInRows ? layer.depth : layer.columns);
    kernel.rows = layer.rows;
    kernel.depth = layer.depth;
    kernel.columns = layer.columns;
    kernel.out = {layer.y, layer.y_dt, typed<T>(layer.bias), nullptr, nullptr, false};
    queue.launch(tiles_of(layer.rows, Shape::kM) * kernel.column_tiles(), kernel);
  });
}

}  // namespace

void CudaOps::linear(DType dt, const void* x, const void* w, int64_t n, int64_t in, int64_t out,
                     DType y_dt, void* y, Stream& s) {
  Queue queue(s, "linear");
  multiply<true>(queue, processor_, dt, {n, in, out, x, w, nullptr, y_dt, y});
}

void CudaOps::linear_biased(DType dt, const void* x, const void* w, const void* bias, int64_t n,
                            int64_t in, int64_t out, void* y, Stream& s) {
  Queue queue(s, "linear_biased");
  multiply<true>(queue, processor_, dt, {n, in, out, x, w, bias, dt, y});
}

void CudaOps::linear_backward_input(DType dt, const void* dy, const void* w, int64_t n, int64_t in,
                                    int64_t out, DType dx_dt, void* dx, Stream& s) {
  Queue queue(s, "linear_backward_input");
  multiply<false>(queue, processor_, dt, {n, out, in, dy, w, nullptr, dx_dt, dx});
}

void CudaOps::linear_backward_weight(DType dt, const void* dy, const void* x, int64_t n,
                                     int64_t in, int64_t out, bool add, float* dw, Stream& s) {
  CHECK(n >= 0 && in > 0 && out > 0);
  Queue queue(s, "linear_backward_weight");
  with_shape(processor_, dt, tiles_of(out, LargeShape::kM) * tiles_of(in, LargeShape::kN),
             [&]<typename Shape>(Shape) {
    using T = typename Shape::T;
    const Estmm<Shape> kernel{matrix_of<T>(dy, out), matrix_of<T>(x, in), nullptr, nullptr, nullptr,
                              n, out, in, add, dw};
    queue.launch(kernel.expert_blocks(), kernel);
  });
}

}  // namespace pagoda::PAGODA_MACHINE
