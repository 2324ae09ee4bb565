// RMSNorm and its gradient (kernels/cpu/norm.cc has the formulas); the gradient of a bias.
#include "kernels/cuda/machine/column_sums.cuh"
#include "kernels/cuda/machine/reduce.cuh"
#include "kernels/cuda/ops_class.cuh"
#include "kernels/cuda/tiles/products.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// Vectors of `dim` in rows of `groups`, `stride` elements apart.
struct Vectors {
  int64_t groups, dim, stride;
  PAGODA_GPU int64_t at(int64_t i) const {
    const int64_t row = quotient(i, groups);
    return row * stride + (i - row * groups) * dim;
  }
};

// A block a vector.
template <typename T>
struct Norm {
  static constexpr int kThreads = 128, kSharedBytes = kThreads / kWarp * 4;
  const T *x, *weight;
  float eps;
  Vectors vectors;
  T* out;
  float* rstd;

  PAGODA_GPU void operator()() const {
    float* memory = reinterpret_cast<float*>(shared_memory());
    const int64_t at = vectors.at(block_number());
    float sum = 0.0f;
    for (int64_t j = thread_number(); j < vectors.dim; j += kThreads) {
      const float v = widen(x[at + j]);
      sum += v * v;
    }
    sum = join_block<kThreads>(sum, Sum(), memory);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(vectors.dim) + eps);
    if (thread_number() == 0) rstd[block_number()] = scale;
    for (int64_t j = thread_number(); j < vectors.dim; j += kThreads) {
      out[at + j] = rounded<T>(as_stored<T>(widen(x[at + j]) * scale) * widen(weight[j]));
    }
  }
};

template <typename T>
struct NormBackward {
  static constexpr int kThreads = 128, kSharedBytes = kThreads / kWarp * 4;
  const T *x, *weight;
  const float* rstd;
  const T* dout;
  Vectors vectors;
  T* dx;

  PAGODA_GPU void operator()() const {
    float* memory = reinterpret_cast<float*>(shared_memory());
    const int64_t at = vectors.at(block_number());
    const float scale = rstd[block_number()];
    float sum = 0.0f;
    for (int64_t j = thread_number(); j < vectors.dim; j += kThreads) {
      sum += widen(dout[at + j]) * widen(weight[j]) * (widen(x[at + j]) * scale);
    }
    const float mean =
        join_block<kThreads>(sum, Sum(), memory) / static_cast<float>(vectors.dim);
    for (int64_t j = thread_number(); j < vectors.dim; j += kThreads) {
      const float h = widen(x[at + j]) * scale;
      dx[at + j] =
          rounded<T>(scale * (widen(dout[at + j]) * widen(weight[j]) - h * mean));
    }
  }
};

template <typename T>
struct NormWeightTerm {
  const T* x;
  const float* rstd;
  const T* dout;
  Vectors vectors;
  PAGODA_GPU float operator()(int64_t i, int64_t j) const {
    const int64_t at = vectors.at(i) + j;
    return widen(dout[at]) * as_stored<T>(widen(x[at]) * rstd[i]);
  }
};

template <typename T>
struct BiasTerm {
  const T* dy;
  int64_t dim;
  PAGODA_GPU float operator()(int64_t i, int64_t j) const { return widen(dy[i * dim + j]); }
};

template <typename T>
struct ScaledTerm {
  RowsOf<T> dy;
  const float* scale;
  PAGODA_GPU float operator()(int64_t row, int64_t column) const {
    const float value = widen(dy.at(row)[column]);
    return scale != nullptr ? scale[row] * value : value;
  }
};

// Blocks: experts x stretches of columns.
template <typename T>
struct GroupedBias {
  using Sums = ColumnSums<ScaledTerm<T>>;
  static constexpr int kThreads = Sums::kThreads, kSharedBytes = Sums::kSharedBytes;
  RowsOf<T> dy;
  const float* scale;
  int64_t dim;
  uint32_t add;  // bit e: add to what is there
  WeightRows<float> listed;

  PAGODA_BOTH int64_t expert_blocks() const { return tiles_of(dim, Sums::kColumns); }
  PAGODA_GPU void operator()() const {
    const int64_t e = quotient(block_number(), expert_blocks());
    const int64_t column0 = (block_number() - e * expert_blocks()) * Sums::kColumns;
    const int64_t first = listed.of[e].first;
    Sums::run({dy, scale}, first, first + listed.of[e].count, kRowBlock, column0, dim,
              (add >> e & 1u) != 0, listed.of[e].weight);
  }
};

}  // namespace

void CudaOps::rmsnorm(DType dt, const void* x, const void* weight, float eps, int64_t rows,
                      int64_t groups, int64_t dim, int64_t stride, void* out, float* rstd,
                      Stream& s) {
  CHECK(rows >= 0 && groups > 0 && dim > 0 && stride >= groups * dim);
  Queue queue(s, "rmsnorm");
  with_type(dt, [&]<typename T>(T) {
    queue.launch(rows * groups, Norm<T>{typed<T>(x), typed<T>(weight), eps, {groups, dim, stride},
                                        typed<T>(out), rstd});
  });
}

void CudaOps::rmsnorm_backward(DType dt, const void* x, const void* weight, const float* rstd,
                               const void* dout, int64_t rows, int64_t groups, int64_t dim,
                               int64_t stride, void* dx, float* dweight, Stream& s) {
  CHECK(rows >= 0 && groups > 0 && dim > 0 && stride >= groups * dim);
  Queue queue(s, "rmsnorm_backward");
  const Vectors vectors{groups, dim, stride};
  with_type(dt, [&]<typename T>(T) {
    // The weight's first: dx may take dout's place.
    add_column_sums(queue, NormWeightTerm<T>{typed<T>(x), rstd, typed<T>(dout), vectors},
                    rows * groups, kRowBlock * groups, dim, dweight);
    queue.launch(rows * groups, NormBackward<T>{typed<T>(x), typed<T>(weight), rstd,
                                                typed<T>(dout), vectors, typed<T>(dx)});
  });
}

void CudaOps::bias_backward(DType dt, const void* dy, int64_t n, int64_t dim, float* dbias,
                            Stream& s) {
  CHECK(n >= 0 && dim > 0);
  Queue queue(s, "bias_backward");
  with_type(dt, [&]<typename T>(T) {
    add_column_sums(queue, BiasTerm<T>{typed<T>(dy), dim}, n, kRowBlock, dim, dbias);
  });
}

void CudaOps::grouped_bias_backward(DType dt, InputRows dy, const float* scale,
                                    std::span<const RowsOfGradient> experts, int64_t dim,
                                    Stream& s) {
  CHECK(dim > 0);
  Queue queue(s, "grouped_bias_backward");
  in_launches(experts, [&](std::span<const RowsOfGradient> some) {
    with_type(dt, [&]<typename T>(T) {
      GroupedBias<T> kernel{rows_of<T>(dy, dim), scale, dim, 0, {}};
      kernel.add = list_gradients(some, kernel.listed);
      queue.launch(std::ssize(some) * kernel.expert_blocks(), kernel);
    });
  });
}

}  // namespace pagoda::PAGODA_MACHINE
