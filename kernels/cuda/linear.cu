// Linear layers: the products of products.cuh with one weight, or with those of several experts.
#include <algorithm>

#include "kernels/cuda/ops_class.cuh"
#include "kernels/cuda/tiles/shapes.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

struct Layer {
  int64_t depth, columns;
  InputRows x;
  DType y_dt;
  OutputRows y;
};

int64_t row_tiles(std::span<const RowsOfWeight> experts, int64_t tile_rows) {
  int64_t tiles = 0;
  for (const RowsOfWeight& e : experts) tiles += tiles_of(e.count, tile_rows);
  return tiles;
}

template <bool kDepthInRows>
void multiply(Queue& queue, Processor processor, DType dt, const Layer& layer,
              std::span<const RowsOfWeight> experts) {
  CHECK(layer.depth > 0 && layer.columns > 0 && std::ssize(experts) <= kMostTogether);
  CHECK(layer.y.sums == nullptr, "experts side by side add to no sums");
  const int64_t large_tiles =
      row_tiles(experts, LargeShape::kM) * tiles_of(layer.columns, LargeShape::kN);
  with_shape<LargeShape>(processor, dt, large_tiles, [&]<typename Shape>(Shape) {
    using T = typename Shape::T;
    Esmm<Shape, kDepthInRows> kernel{};
    kernel.x = rows_of<T>(layer.x, layer.depth);
    kernel.w = matrix_of<T>(nullptr, kDepthInRows ? layer.depth : layer.columns);
    for (const RowsOfWeight& e : experts) {
      CHECK(e.first >= 0 && e.count >= 0 && e.first + e.count <= INT32_MAX);
      kernel.w.aligned = kernel.w.aligned && matrix_of<T>(e.w, kernel.w.stride).aligned;
      // Gradients of inputs have the rows' weights too, but no biases.
      kernel.biases.of[kernel.listed.entries] = kDepthInRows ? typed<T>(e.bias) : nullptr;
      kernel.listed.of[kernel.listed.entries++] = {typed<T>(e.w), static_cast<int32_t>(e.first),
                                                   static_cast<int32_t>(e.count)};
    }
    kernel.depth = layer.depth;
    kernel.columns = layer.columns;
    kernel.y = layer.y.dense;
    kernel.y_dt = layer.y_dt;
    const auto pair_bytes = static_cast<uintptr_t>(2 * dtype_bytes(layer.y_dt));
    kernel.y_in_pairs =
        layer.columns % 2 == 0 && reinterpret_cast<uintptr_t>(layer.y.dense) % pair_bytes == 0;
    queue.launch(row_tiles(experts, Shape::kM) * kernel.column_tiles(), kernel);
  });
}

template <bool kDepthInRows>
void multiply(Queue& queue, Processor processor, DType dt, const Layer& layer,
              const RowsOfWeight& all) {
  multiply<kDepthInRows>(queue, processor, dt, layer, {&all, 1});
}

void multiply_weights(Queue& queue, Processor processor, DType dt, InputRows dy, InputRows x,
                      std::span<const RowsOfGradient> experts, int64_t in, int64_t out) {
  CHECK(in > 0 && out > 0);
  using Large = LargeGradientShape;
  const int64_t large_tiles =
      std::ssize(experts) * tiles_of(out, Large::kM) * tiles_of(in, Large::kN);
  with_shape<Large>(processor, dt, large_tiles, [&]<typename Shape>(Shape) {
    using T = typename Shape::T;
    Estmm<Shape> kernel{};
    kernel.dy = rows_of<T>(dy, out);
    kernel.x = rows_of<T>(x, in);
    kernel.out = out;
    kernel.in = in;
    kernel.add = list_gradients(experts, kernel.listed);
    kernel.in_pairs = in % 2 == 0 && std::ranges::all_of(experts, [](const RowsOfGradient& e) {
                        return reinterpret_cast<uintptr_t>(e.dw) % sizeof(float[2]) == 0;
                      });
    queue.launch(std::ssize(experts) * kernel.expert_blocks(), kernel);
  });
}

}  // namespace

void CudaOps::linear(DType dt, const void* x, const void* w, int64_t n, int64_t in, int64_t out,
                     DType y_dt, void* y, Stream& s) {
  Queue queue(s, "linear");
  multiply<true>(queue, processor_, dt, {in, out, x, y_dt, y}, RowsOfWeight{0, n, w});
}

void CudaOps::linear_biased(DType dt, const void* x, const void* w, const void* bias, int64_t n,
                            int64_t in, int64_t out, DType y_dt, void* y, Stream& s) {
  Queue queue(s, "linear_biased");
  multiply<true>(queue, processor_, dt, {in, out, x, y_dt, y}, RowsOfWeight{0, n, w, bias});
}

void CudaOps::linear_backward_input(DType dt, const void* dy, const void* w, int64_t n, int64_t in,
                                    int64_t out, DType dx_dt, void* dx, Stream& s) {
  Queue queue(s, "linear_backward_input");
  multiply<false>(queue, processor_, dt, {out, in, dy, dx_dt, dx}, RowsOfWeight{0, n, w});
}

void CudaOps::linear_backward_weight(DType dt, const void* dy, const void* x, int64_t n,
                                     int64_t in, int64_t out, bool add, float* dw, Stream& s) {
  Queue queue(s, "linear_backward_weight");
  const RowsOfGradient all{0, n, dw, add};
  multiply_weights(queue, processor_, dt, dy, x, {&all, 1}, in, out);
}

void CudaOps::grouped_linear(DType dt, InputRows x, std::span<const RowsOfWeight> experts,
                             int64_t in, int64_t out, DType y_dt, OutputRows y, Stream& s) {
  Queue queue(s, "grouped_linear");
  in_launches(experts, [&](std::span<const RowsOfWeight> some) {
    multiply<true>(queue, processor_, dt, {in, out, x, y_dt, y}, some);
  });
}

void CudaOps::grouped_linear_backward_input(DType dt, InputRows dy,
                                            std::span<const RowsOfWeight> experts, int64_t in,
                                            int64_t out, DType dx_dt, OutputRows dx, Stream& s) {
  Queue queue(s, "grouped_linear_backward_input");
  in_launches(experts, [&](std::span<const RowsOfWeight> some) {
    multiply<false>(queue, processor_, dt, {out, in, dy, dx_dt, dx}, some);
  });
}

void CudaOps::grouped_linear_backward_weight(DType dt, InputRows dy, InputRows x,
                                             std::span<const RowsOfGradient> experts, int64_t in,
                                             int64_t out, Stream& s) {
  Queue queue(s, "grouped_linear_backward_weight");
  in_launches(experts, [&](std::span<const RowsOfGradient> some) {
    multiply_weights(queue, processor_, dt, dy, x, some, in, out);
  });
}

}  // namespace pagoda::PAGODA_MACHINE
