// Shared parts of the attention kernels: heads as matrices, the tiles of documents on the device,
// and the choice of unit and tile width for a head size.
#pragma once

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/machine/reduce.cuh"
#include "kernels/cuda/tiles/rows_operand.cuh"

namespace pagoda::PAGODA_MACHINE {

// A tensor of heads: row t of head h at base + t * stride + h * head_dim.
template <typename T>
struct Heads {
  Matrix<T> all;
  int64_t head_dim;
  PAGODA_GPU Matrix<T> head(int64_t h) const {
    return {all.base + h * head_dim, all.stride, all.aligned};
  }
};
template <typename T>
Heads<T> heads_of(const void* base, int64_t stride, int64_t head_dim) {
  Matrix<T> all = matrix_of<T>(base, stride);
  all.aligned = all.aligned && head_dim * static_cast<int64_t>(sizeof(T)) % 16 == 0;
  return {all, head_dim};
}

// Loads the rows [row, end) of a head into a tile; columns beyond the head are zeros.
template <int kThreads, typename TileType, typename T>
PAGODA_GPU void load_rows(const TileType& tile, const Heads<T>& heads, int64_t head, int64_t row,
                          int64_t end) {
  load_tile<kThreads>(tile, heads.head(head), row, end - row, 0, heads.head_dim);
}

// How many of the rows from `begin` on lie, in whole pieces, before all that a window from `first`
// on leaves.
PAGODA_BOTH int64_t rows_before_window(int64_t begin, int64_t first, int64_t window,
                                       int64_t piece) {
  if (window == 0 || first - window + 1 <= begin) return 0;
  return quotient(first - window + 1 - begin, piece) * piece;
}

// The weight of a score beside the highest: e^(score scale - highest). Among weights that become
// bf16 it takes a processor's own power of two.
template <typename T>
PAGODA_GPU float weight_of(float score, float scale, float highest) {
  if constexpr (std::is_same_v<T, bf16>) {
    constexpr float kLog2E = 1.44269504088896341f;
    return power_of_two_near(fused(score, scale * kLog2E, highest * -kLog2E));
  } else {
    return exponential(score * scale - highest);
  }
}

inline void check_attention(const AttentionShape& shape, const int32_t* document_start,
                            int64_t documents) {
  CHECK(shape.tokens >= 0 && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  CHECK(shape.head_dim > 0 && shape.head_dim % 2 == 0 && shape.qkv_stride >= shape.head_dim);
  CHECK(shape.window >= 0);
  CHECK(shape.head_dim <= kCudaMostHeadDim,
        "heads of %lld: attention on the GPU has kernels for at most %lld; nothing was computed",
        static_cast<long long>(shape.head_dim), static_cast<long long>(kCudaMostHeadDim));
  CHECK(documents >= 0 && document_start[0] == 0 && document_start[documents] == shape.tokens);
}

// The tiles of documents in device memory.
class TilesOnDevice {
 public:
  TilesOnDevice(Queue& queue, const int32_t* document_start, int64_t documents, int32_t rows)
      : tiles_(document_tiles(document_start, documents, rows)),
        memory_(queue, static_cast<int64_t>(tiles_.size())) {
    upload(queue, memory_.get(), tiles_.data(), count());
  }
  int64_t count() const { return static_cast<int64_t>(tiles_.size()); }
  const DocumentTile* get() const { return memory_.get(); }

 private:
  std::vector<DocumentTile> tiles_;
  Temporary<DocumentTile> memory_;
};

template <typename UnitType, int kWidth>
struct HeadShape {
  using Unit = UnitType;
  static constexpr int kDim = kWidth;  // columns of tiles: the head's and zeros
  static constexpr bool kTensor = std::is_base_of_v<TensorUnit, Unit>;
};

// body(HeadShape()) for heads of `head_dim`.
template <typename Body>
void with_head_shape(Processor processor, DType dt, int64_t head_dim, Body&& body) {
  const auto coarse = [&]<typename Unit>(Unit) {
    if (head_dim <= 64) return body(HeadShape<Unit, 64>());
    body(HeadShape<Unit, 128>());
  };
  if (dt == DType::kF32) return coarse(PlainUnit<float>());
  if (!processor.bf16_cores) return coarse(Fp16Unit());
  if (head_dim <= 64) return body(HeadShape<TensorUnit, 64>());
  if (head_dim <= 96) return body(HeadShape<TensorUnit, 96>());
  body(HeadShape<TensorUnit, 128>());
}

inline float score_scale(int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace pagoda::PAGODA_MACHINE
