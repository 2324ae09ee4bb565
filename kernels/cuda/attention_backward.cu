// The gradient of causal attention (FlashAttention-2's formulas, kernels/cpu/attention_backward.cc
// has them) in two sweeps, so that every output row has one writer: tiles of queries sum dq over
// their keys, tiles of keys sum dk and dv over the queries of all heads that share them. Both are
// one kernel: a warp's 16 rows stay, the other side's rows stream by.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/machine/column_sums.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// delta (heads, tokens) = sum of dout out: a warp a head of a token.
template <typename T>
struct Delta {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp, kSharedBytes = 0;
  const T *out, *dout;
  int64_t tokens, heads, head_dim;
  float* delta;
  PAGODA_GPU void operator()() const {
    const int64_t i = block_number() * kWarps + warp_number();
    if (i >= tokens * heads) return;
    float sum = 0.0f;
    for (int64_t j = lane_number(); j < head_dim; j += kWarp) {
      sum += widen(out[i * head_dim + j]) * widen(dout[i * head_dim + j]);
    }
    sum = join_warp(sum, Sum());
    const int64_t t = quotient(i, heads);
    if (lane_number() == 0) delta[(i - t * heads) * tokens + t] = sum;
  }
};

// The part of row t in head h's dsinks.
template <typename T>
struct SinkTerm {
  const T* sinks;
  const float *lse, *delta;
  int64_t tokens;
  PAGODA_GPU float operator()(int64_t t, int64_t h) const {
    return -(exponential(widen(sinks[h]) - lse[h * tokens + t]) * delta[h * tokens + t]);
  }
};

template <typename Shape, bool kByKeys>
struct AttentionBackward {
  using Unit = typename Shape::Unit;
  using T = typename Unit::Element;
  static constexpr int kDim = Shape::kDim, kWarps = Shape::kTensor ? 4 : 2;
  static constexpr int kRows = 16 * kWarps;
  static constexpr int kOthers = Shape::kTensor && !Unit::kScaled ? 32 : 16;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kCount = kOthers / 8, kWidth = kDim / 8;
  using OwnTile = Tile<T, kRows, kDim>;
  using OtherTile = Tile<T, kOthers, kDim>;
  using Own = RowsOperand<Unit, OwnTile>;
  using Other = RowsOperand<Unit, OtherTile>;
  static constexpr int kTileBytes = 2 * OwnTile::kBytes + 4 * OtherTile::kBytes;
  static constexpr int kSharedBytes = kTileBytes + 2 * (Own::kScaleBytes + Other::kScaleBytes);

  const DocumentTile* tiles;
  int64_t tokens, heads, group, window;
  Heads<T> q, k, v, dout;
  const float *lse, *delta;
  float scale;
  T *dq, *dk, *dv;  // (tokens, stride)
  int64_t stride;

  // Own rows are those of `own_head`; others are of one head after another.
  struct Work {
    DocumentTile tile;
    int64_t own_head;
    int64_t first, end, blocks;  // other rows, cut into blocks
  };
  struct Sums {
    float scores[kWidth][4] = {};  // dq or dk, before the scale
    float values[kWidth][4] = {};  // dv
  };

  PAGODA_GPU static RowScale* scales() {
    return reinterpret_cast<RowScale*>(shared_memory() + kTileBytes);
  }
  PAGODA_GPU static Own own(int of) {
    return {{reinterpret_cast<T*>(shared_memory() + of * OwnTile::kBytes)}, scales() + of * kRows};
  }
  PAGODA_GPU static Other other(int64_t step, int of) {
    return {{reinterpret_cast<T*>(shared_memory() + 2 * OwnTile::kBytes +
                                  (step % 2 * 2 + of) * OtherTile::kBytes)},
            scales() + 2 * kRows + of * kOthers};
  }
  PAGODA_GPU static void prepare(int64_t step) {
    if constexpr (Unit::kScaled) {
      for (int of = 0; of < 2; ++of) {
        if (step == 0) own(of).template prepare<kThreads>();
        other(step, of).template prepare<kThreads>();
      }
      sync_block();
    }
  }
  // The query head of a step: by keys the group's one after the other.
  PAGODA_GPU int64_t query_head(const Work& work, int64_t step) const {
    return kByKeys ? work.own_head * group + quotient(step, work.blocks) : work.own_head;
  }
  PAGODA_GPU static int64_t other_row(const Work& work, int64_t step) {
    return work.first + (step - quotient(step, work.blocks) * work.blocks) * kOthers;
  }
  PAGODA_GPU void load(const Work& work, int64_t step) const {
    const int64_t row = other_row(work, step);
    const int64_t head = kByKeys ? query_head(work, step) : work.own_head / group;
    load_rows<kThreads>(other(step, 0).tile, kByKeys ? q : k, head, row, work.end);
    load_rows<kThreads>(other(step, 1).tile, kByKeys ? dout : v, head, row, work.end);
  }

  PAGODA_GPU Work work_of(int64_t block) const {
    const int64_t own_heads = kByKeys ? heads / group : heads;
    const int64_t tile_number = quotient(block, own_heads);
    Work work;
    work.tile = tiles[tile_number];
    work.own_head = block - tile_number * own_heads;
    const int64_t own_end = work.tile.row + work.tile.rows;
    const int64_t before = rows_before_window(work.tile.begin, work.tile.row, window, kOthers);
    work.first = kByKeys ? work.tile.row : work.tile.begin + before;
    work.end = kByKeys ? work.tile.end : own_end;
    if (kByKeys && window > 0) work.end = smaller(work.end, own_end - 1 + window);
    work.blocks = tiles_of(work.end - work.first, kOthers);
    return work;
  }

  PAGODA_GPU void operator()() const {
    const Work work = work_of(block_number());
    const int64_t own_end = work.tile.row + work.tile.rows;
    const int64_t steps = work.blocks * (kByKeys ? group : 1);
    load_rows<kThreads>(own(0).tile, kByKeys ? k : q, work.own_head, work.tile.row, own_end);
    load_rows<kThreads>(own(1).tile, kByKeys ? v : dout, work.own_head, work.tile.row, own_end);
    load(work, 0);
    commit_copies();
    Sums sums;
    for (int64_t step = 0; step < steps; ++step) {
      if (step + 1 < steps) load(work, step + 1);
      commit_copies();
      wait_copies<1>();
      sync_block();
      prepare(step);
      add_step(work, step, sums);
      sync_block();
    }
    wait_copies<0>();
    if constexpr (kByKeys) {
      store(work, sums.scores, scale, dk);
      store(work, sums.values, 1.0f, dv);
    } else {
      store(work, sums.scores, scale, dq);
    }
  }

  PAGODA_GPU void add_step(const Work& work, int64_t step, Sums& sums) const {
    const int64_t own0 = work.tile.row + 16 * warp_number(), other0 = other_row(work, step);
    const int64_t last_own = own0 + 15, last_other = other0 + kOthers - 1;
    const int64_t first_query = kByKeys ? other0 : own0, last_key = kByKeys ? last_own : last_other;
    const int64_t last_query = kByKeys ? last_other : last_own, first_key = kByKeys ? own0 : other0;
    const bool all = last_key <= first_query && (window == 0 || last_query - first_key < window) &&
                     last_own < work.tile.row + work.tile.rows && last_other < work.end;
    all ? add_seen<true>(work, step, sums) : add_seen<false>(work, step, sums);
  }

  // `kAll`: all of the warp's queries, or of the step's, see all keys there.
  template <bool kAll>
  PAGODA_GPU void add_seen(const Work& work, int64_t step, Sums& sums) const {
    float scores[1][kCount][4], gradients[1][kCount][4];
    const int row = 16 * warp_number();
    multiply_rows(own(0), row, other(step, 0), scores);
    multiply_rows(own(1), row, other(step, 1), gradients);
    const float* row_lse = lse + query_head(work, step) * tokens;
    const float* row_delta = delta + query_head(work, step) * tokens;
    const int64_t own0 = work.tile.row + row, own_end = work.tile.row + work.tile.rows;
    const int64_t other0 = other_row(work, step);
    PAGODA_UNROLL
    for (int n = 0; n < kCount; ++n) {
      for_sums([&](int i, int own_row, int column) {
        const int64_t mine = own0 + own_row, theirs = other0 + 8 * n + column;
        const int64_t query = kByKeys ? theirs : mine, key = kByKeys ? mine : theirs;
        const bool in_window = window == 0 || query - key < window;
        const bool seen =
            kAll || (key <= query && in_window && mine < own_end && theirs < work.end);
        const float p = seen ? weight_of<T>(scores[0][n][i], scale, row_lse[query]) : 0.0f;
        gradients[0][n][i] = seen ? p * (gradients[0][n][i] - row_delta[query]) : 0.0f;
        scores[0][n][i] = p;
      });
    }
    if constexpr (kByKeys) multiply_sums_by_rows(scores[0], other(step, 1), sums.values);
    multiply_sums_by_rows(gradients[0], other(step, 0), sums.scores);
  }

  PAGODA_GPU void store(const Work& work, const float (&sums)[kWidth][4], float factor,
                        T* target) const {
    PAGODA_UNROLL
    for (int n = 0; n < kWidth; ++n) {
      for_sums([&](int i, int row, int column) {
        const int64_t t = 16 * warp_number() + row, dim = 8 * n + column;
        if (t >= work.tile.rows || dim >= q.head_dim) return;
        target[(work.tile.row + t) * stride + work.own_head * q.head_dim + dim] =
            rounded<T>(sums[n][i] * factor);
      });
    }
  }
};

}  // namespace

void CudaOps::attention_backward(DType dt, const AttentionShape& shape,
                                 const int32_t* document_start, int64_t documents, const void* q,
                                 const void* k, const void* v, const void* out, const float* lse,
                                 const void* dout, void* dq, void* dk, void* dv, Stream& s) {
  check_attention(shape, document_start, documents);
  Queue queue(s, "attention_backward");
  const int64_t dim = shape.head_dim, stride = shape.qkv_stride;
  with_head_shape(processor_, dt, dim, [&]<typename Shape>(Shape) {
    using Queries = AttentionBackward<Shape, false>;
    using Keys = AttentionBackward<Shape, true>;
    using T = typename Queries::T;
    Temporary<float> delta(queue, shape.heads * shape.tokens);
    const TilesOnDevice tiles(queue, document_start, documents, Queries::kRows);
    queue.launch(div_ceil(shape.tokens * shape.heads, Delta<T>::kWarps),
                 Delta<T>{typed<T>(out), typed<T>(dout), shape.tokens, shape.heads, dim,
                          delta.get()});
    const auto kernel = [&]<typename Kernel>(Kernel) {
      return Kernel{tiles.get(),
                    shape.tokens,
                    shape.heads,
                    shape.heads / shape.kv_heads,
                    shape.window,
                    heads_of<T>(q, stride, dim),
                    heads_of<T>(k, stride, dim),
                    heads_of<T>(v, stride, dim),
                    heads_of<T>(dout, shape.heads * dim, dim),
                    lse,
                    delta.get(),
                    score_scale(dim),
                    typed<T>(dq),
                    typed<T>(dk),
                    typed<T>(dv),
                    stride};
    };
    queue.launch(tiles.count() * shape.heads, kernel(Queries{}));
    queue.launch(tiles.count() * shape.kv_heads, kernel(Keys{}));
  });
}

void CudaOps::attention_sinks_backward(DType dt, const AttentionShape& shape, const void* out,
                                       const float* lse, const void* dout, float* dsinks,
                                       Stream& s) {
  CHECK(shape.sinks != nullptr && shape.tokens >= 0);
  Queue queue(s, "attention_sinks_backward");
  with_type(dt, [&]<typename T>(T) {
    Temporary<float> delta(queue, shape.heads * shape.tokens);
    queue.launch(div_ceil(shape.tokens * shape.heads, Delta<T>::kWarps),
                 Delta<T>{typed<T>(out), typed<T>(dout), shape.tokens, shape.heads, shape.head_dim,
                          delta.get()});
    add_column_sums(queue, SinkTerm<T>{typed<T>(shape.sinks), lse, delta.get(), shape.tokens},
                    shape.tokens, kRowBlock, shape.heads, dsinks);
  });
}

}  // namespace pagoda::PAGODA_MACHINE
