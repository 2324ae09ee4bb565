#include "kernels/cuda/expert_ops.h"

#include "kernels/cuda/machine/column_sums.cuh"
#include "kernels/cuda/reindex.cuh"
#include "kernels/cuda/tiles/shapes.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

template <typename T>
struct RowTerm {
  const T* x;
  const int32_t* index;
  int64_t dim;
  PAGODA_GPU float operator()(int64_t i, int64_t j) const {
    const int64_t row = index != nullptr ? index[i] : i;
    return widen(x[row * dim + j]);
  }
};

// Blocks: experts x stretches of columns.
template <typename T, int kThreadCount = 256>
struct Ess {
  using Sums = ColumnSums<RowTerm<T>, kThreadCount>;
  static constexpr int kThreads = kThreadCount, kSharedBytes = Sums::kSharedBytes;
  RowTerm<T> term;
  const int32_t* offsets;
  float* sums;

  PAGODA_BOTH int64_t expert_blocks() const { return tiles_of(term.dim, Sums::kColumns); }
  PAGODA_GPU void run(int64_t block) const {
    const int64_t e = quotient(block, expert_blocks());
    const int64_t column0 = (block - e * expert_blocks()) * Sums::kColumns;
    Sums::run(term, offsets[e], offsets[e + 1], kRowBlock, column0, term.dim, true,
              sums + e * term.dim);
  }
  PAGODA_GPU void operator()() const { run(block_number()); }
};

// The fused kernel: each block has one of the three operators, all with the same threads. The
// longest blocks, those of ESTMM, begin first.
template <typename Shape>
struct Esfk {
  using T = typename Shape::T;
  static constexpr int kThreads = Shape::kThreads, kSharedBytes = Shape::kSharedBytes;
  Estmm<Shape> estmm;
  Esmm<Shape, false> esmm;
  Ess<T, kThreads> ess;
  int64_t estmm_blocks, esmm_blocks;
  static_assert(Ess<T, kThreads>::kThreads == kThreads);
  static_assert(Ess<T, kThreads>::kSharedBytes <= kSharedBytes);
  PAGODA_GPU void operator()() const {
    const int64_t block = block_number();
    if (block < estmm_blocks) {
      estmm.run(block);
    } else if (block < estmm_blocks + esmm_blocks) {
      esmm.run(block - estmm_blocks);
    } else {
      ess.run(block - estmm_blocks - esmm_blocks);
    }
  }
};

void check_rows(const ExpertRows& e, int64_t in, int64_t out) {
  CHECK(e.num_experts > 0 && e.rows >= 0 && e.rows <= INT32_MAX && in > 0 && out > 0);
}

int64_t large_tiles(const ExpertRows& e, int64_t columns) {
  return most_tiles(e.rows, e.num_experts, LargeShape::kM) * tiles_of(columns, LargeShape::kN);
}

// The kernel of a product over all experts, without its output and tiles.
template <typename Shape, bool kDepthInRows>
Esmm<Shape, kDepthInRows> product(const void* x, const int32_t* index, const void* w,
                                  int64_t depth, int64_t columns) {
  using T = typename Shape::T;
  Esmm<Shape, kDepthInRows> kernel{};
  kernel.x = rows_of<T>(x, depth, index);
  kernel.w = matrix_of<T>(w, kDepthInRows ? depth : columns);
  kernel.w.aligned = kernel.w.aligned && depth * columns * sizeof(T) % 16 == 0;
  kernel.expert_elements = depth * columns;
  kernel.depth = depth;
  kernel.columns = columns;
  return kernel;
}

template <typename Shape>
Estmm<Shape> weight_product(const ExpertRows& e, const void* dy, const int32_t* dy_index,
                            const void* x, const int32_t* x_index, int64_t in, int64_t out,
                            bool add, float* dw) {
  using T = typename Shape::T;
  return {rows_of<T>(dy, out, dy_index),
          rows_of<T>(x, in, x_index),
          e.offsets,
          {},
          out,
          in,
          add ? 1u : 0u,
          dw};
}

// The tiles of a kernel's rows, in memory of their own.
template <typename Shape>
struct Tiles {
  Tiles(Queue& queue, const ExpertRows& e)
      : count(most_tiles(e.rows, e.num_experts, Shape::kM)), memory(queue, count) {
    build_tiles(queue, e.offsets, e.num_experts, e.rows, Shape::kM, memory.get());
  }
  int64_t count;
  Temporary<RowTile> memory;
};

template <bool kDepthInRows>
void multiply(Queue& queue, Processor processor, DType dt, const ExpertRows& e, const void* x,
              const int32_t* index, const void* w, const void* bias, int64_t depth,
              int64_t columns, DType y_dt, void* y) {
  check_rows(e, depth, columns);
  with_shape(processor, dt, large_tiles(e, columns), [&]<typename Shape>(Shape) {
    const Tiles<Shape> tiles(queue, e);
    auto kernel = product<Shape, kDepthInRows>(x, index, w, depth, columns);
    kernel.tiles = tiles.memory.get();
    kernel.out = {y, y_dt, typed<typename Shape::T>(bias), nullptr, nullptr, false};
    queue.launch(tiles.count * kernel.column_tiles(), kernel);
  });
}

class CudaExpertOps final : public ExpertOps {
 public:
  explicit CudaExpertOps(Processor processor) : processor_(processor) {}

  void reindex(const int32_t* experts, int64_t tokens, int64_t k, int64_t num_experts,
               int32_t* offsets, int32_t* rows, int32_t* choices, Stream& s) override {
    Queue queue(s, "reindex");
    build_reindex(queue, experts, tokens, k, num_experts, {offsets, rows, choices});
  }

  void esmm(DType dt, const ExpertRows& e, const void* x, const int32_t* index, const void* w,
            const void* bias, int64_t in, int64_t out, DType y_dt, void* y, Stream& s) override {
    Queue queue(s, "esmm");
    multiply<true>(queue, processor_, dt, e, x, index, w, bias, in, out, y_dt, y);
  }

  void esmm_combine(DType dt, const ExpertRows& e, const void* x, const void* w, int64_t in,
                    int64_t out, const int32_t* index, const float* scale, int64_t tokens,
                    float* y, Stream& s) override {
    check_rows(e, in, out);
    Queue queue(s, "esmm_combine");
    const int64_t rows = smaller(e.rows, tokens);  // an expert's at most
    const int64_t tiles = tiles_of(rows, LargeShape::kM) * tiles_of(out, LargeShape::kN);
    with_shape(processor_, dt, tiles, [&]<typename Shape>(Shape) {
      auto kernel = product<Shape, true>(x, nullptr, w, in, out);
      kernel.offsets = e.offsets;
      kernel.out = {y, DType::kF32, nullptr, index, scale, true};
      for (int32_t expert = 0; expert < e.num_experts; ++expert) {
        kernel.expert = expert;
        queue.launch(tiles_of(rows, Shape::kM) * kernel.column_tiles(), kernel);
      }
    });
  }

  void esmm_backward_input(DType dt, const ExpertRows& e, const void* dy, const int32_t* index,
                           const void* w, int64_t in, int64_t out, DType dx_dt, void* dx,
                           Stream& s) override {
    Queue queue(s, "esmm_backward_input");
    multiply<false>(queue, processor_, dt, e, dy, index, w, nullptr, out, in, dx_dt, dx);
  }

  void ess(DType dt, const ExpertRows& e, const void* x, const int32_t* index, int64_t dim,
           float* sums, Stream& s) override {
    check_rows(e, dim, dim);
    Queue queue(s, "ess");
    with_type(dt, [&]<typename T>(T) {
      const Ess<T> kernel{{typed<T>(x), index, dim}, e.offsets, sums};
      queue.launch(e.num_experts * kernel.expert_blocks(), kernel);
    });
  }

  void estmm(DType dt, const ExpertRows& e, const void* dy, const int32_t* dy_index, const void* x,
             const int32_t* x_index, int64_t in, int64_t out, bool add, float* dw,
             Stream& s) override {
    check_rows(e, in, out);
    Queue queue(s, "estmm");
    with_weight_shape(dt, e, in, out, [&]<typename Shape>(Shape) {
      const auto kernel = weight_product<Shape>(e, dy, dy_index, x, x_index, in, out, add, dw);
      queue.launch(e.num_experts * kernel.expert_blocks(), kernel);
    });
  }

  void esfk(DType dt, const ExpertRows& e, const void* dy, const int32_t* dy_index, const void* x,
            const int32_t* x_index, const void* w, int64_t in, int64_t out, DType dx_dt, void* dx,
            bool add, float* dw, float* dbias, Stream& s) override {
    check_rows(e, in, out);
    Queue queue(s, "esfk");
    with_weight_shape(dt, e, in, out, [&]<typename Shape>(Shape) {
      using T = typename Shape::T;
      const Tiles<Shape> tiles(queue, e);
      Esfk<Shape> kernel{
          weight_product<Shape>(e, dy, dy_index, x, x_index, in, out, add, dw),
          product<Shape, false>(dy, dy_index, w, out, in),
          {{typed<T>(dy), dy_index, out}, e.offsets, dbias},
          0,
          0};
      kernel.esmm.tiles = tiles.memory.get();
      kernel.esmm.out = {dx, dx_dt, nullptr, nullptr, nullptr, false};
      kernel.estmm_blocks = e.num_experts * kernel.estmm.expert_blocks();
      kernel.esmm_blocks = tiles.count * kernel.esmm.column_tiles();
      const int64_t ess_blocks = dbias != nullptr ? e.num_experts * kernel.ess.expert_blocks() : 0;
      queue.launch(kernel.estmm_blocks + kernel.esmm_blocks + ess_blocks, kernel);
    });
  }

 private:
  template <typename Body>
  void with_weight_shape(DType dt, const ExpertRows& e, int64_t in, int64_t out,
                         const Body& body) const {
    with_shape(processor_, dt,
               e.num_experts * tiles_of(out, LargeShape::kM) * tiles_of(in, LargeShape::kN), body);
  }
  Processor processor_;
};

}  // namespace
}  // namespace pagoda::PAGODA_MACHINE

namespace pagoda {

#if defined(__CUDACC__)
std::unique_ptr<ExpertOps> make_cuda_expert_ops(Device& device) {
  const auto stream = device.make_stream("kernels", WorkKind::kOther);
  return std::make_unique<gpu::CudaExpertOps>(gpu::Processor::of(*stream));
}
#else
std::unique_ptr<ExpertOps> make_emulated_expert_ops(bool bf16_cores, int multiprocessors) {
  return std::make_unique<emulated::CudaExpertOps>(
      emulated::Processor{bf16_cores, multiprocessors});
}
#endif

}  // namespace pagoda
