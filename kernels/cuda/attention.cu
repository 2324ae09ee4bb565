// Causal attention with online softmax (Milakov & Gimelshein 2018), tiled as in FlashAttention-2
// (Dao 2023): a warp has 16 queries of a head, in whose registers scores, probabilities and the
// output stay; keys and values stream through shared memory, a block of them ahead.
#include "kernels/cuda/attention.cuh"

#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// For each of a thread's two rows (for_sums): the largest score, and the sum of exponentials over
// the thread's columns.
struct SoftmaxRows {
  float highest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
};

// Joins values over the four threads that share a row.
template <typename Join>
PAGODA_GPU float join_row(float value, Join join) {
  value = join(value, shuffle_xor(value, 1));
  return join(value, shuffle_xor(value, 2));
}

template <typename Shape>
struct Attention {
  using Unit = typename Shape::Unit;
  using T = typename Unit::Element;
  static constexpr int kDim = Shape::kDim, kWarps = Shape::kTensor ? 4 : 2;
  static constexpr int kRows = 16 * kWarps;
  static constexpr int kKeys = !Shape::kTensor ? 16 : Unit::kScaled ? 32 : 64;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kCount = kKeys / 8, kWidth = kDim / 8;  // tiles of sums
  using QueryTile = Tile<T, kRows, kDim>;
  using KeyTile = Tile<T, kKeys, kDim>;
  using Queries = RowsOperand<Unit, QueryTile>;
  using Keys = RowsOperand<Unit, KeyTile>;
  static constexpr int kTileBytes = QueryTile::kBytes + 4 * KeyTile::kBytes;
  static constexpr int kSharedBytes = kTileBytes + Queries::kScaleBytes + 2 * Keys::kScaleBytes;

  const DocumentTile* tiles;
  int64_t tokens, heads, group, window;
  const T* sinks;
  Heads<T> q, k, v;
  T* out;
  float* lse;
  float scale;

  PAGODA_GPU static Queries queries() {
    return {{reinterpret_cast<T*>(shared_memory())},
            reinterpret_cast<RowScale*>(shared_memory() + kTileBytes)};
  }
  PAGODA_GPU static Keys stage(int64_t block, int of) {
    return {{reinterpret_cast<T*>(shared_memory() + QueryTile::kBytes +
                                  (block % 2 * 2 + of) * KeyTile::kBytes)},
            queries().scales + kRows + of * kKeys};
  }
  PAGODA_GPU void load(const DocumentTile& tile, int64_t head, int64_t block) const {
    const int64_t key = tile.begin + block * kKeys;
    load_rows<kThreads>(stage(block, 0).tile, k, head / group, key, tile.row + tile.rows);
    load_rows<kThreads>(stage(block, 1).tile, v, head / group, key, tile.row + tile.rows);
  }
  PAGODA_GPU static void prepare(int64_t block) {
    if constexpr (Unit::kScaled) {
      if (block == 0) queries().template prepare<kThreads>();
      for (int of = 0; of < 2; ++of) stage(block, of).template prepare<kThreads>();
      sync_block();
    }
  }

  PAGODA_GPU void operator()() const {
    const int64_t tile_number = quotient(block_number(), heads);
    const int64_t head = block_number() - tile_number * heads;
    DocumentTile tile = tiles[tile_number];
    // Its keys begin where the window of its first row does.
    tile.begin += static_cast<int32_t>(rows_before_window(tile.begin, tile.row, window, kKeys));
    const int64_t blocks = tiles_of(tile.row + tile.rows - tile.begin, kKeys);
    float total[kWidth][4] = {};
    SoftmaxRows state = first_state(head);
    load_rows<kThreads>(queries().tile, q, head, tile.row, tile.row + tile.rows);
    load(tile, head, 0);
    commit_copies();
    for (int64_t block = 0; block < blocks; ++block) {
      if (block + 1 < blocks) load(tile, head, block + 1);
      commit_copies();
      wait_copies<1>();
      sync_block();
      prepare(block);
      float scores[1][kCount][4];
      multiply_rows(queries(), 16 * warp_number(), stage(block, 0), scores);
      soften(tile, tile.begin + block * kKeys, scores[0], state, total);
      multiply_sums_by_rows(scores[0], stage(block, 1), total);
      sync_block();
    }
    wait_copies<0>();
    store(tile, head, state, total);
  }

  // A sink is there before any key; one of the threads that share a row counts it.
  PAGODA_GPU SoftmaxRows first_state(int64_t head) const {
    SoftmaxRows state;
    if (sinks == nullptr) return state;
    for (int r = 0; r < 2; ++r) {
      state.highest[r] = widen(sinks[head]);
      state.sum[r] = lane_number() % 4 == 0 ? 1.0f : 0.0f;
    }
    return state;
  }

  // Scores of keys from `key0` on become exponentials; what was summed before shrinks with the
  // maximum.
  PAGODA_GPU void soften(const DocumentTile& tile, int64_t key0, float (&scores)[kCount][4],
                         SoftmaxRows& state, float (&total)[kWidth][4]) const {
    const int64_t first = tile.row + 16 * warp_number(), last = first + 15;
    const bool all = key0 + kKeys - 1 <= first && (window == 0 || last - key0 < window) &&
                     last < tile.row + tile.rows;
    all ? soften_seen<true>(tile, key0, scores, state, total)
        : soften_seen<false>(tile, key0, scores, state, total);
  }

  // `kAll`: all of the warp's queries see all these keys.
  template <bool kAll>
  PAGODA_GPU void soften_seen(const DocumentTile& tile, int64_t key0, float (&scores)[kCount][4],
                              SoftmaxRows& state, float (&total)[kWidth][4]) const {
    float best[2] = {-INFINITY, -INFINITY}, shrink[2], sum[2] = {0.0f, 0.0f};
    const int64_t query0 = tile.row + 16 * warp_number(), end = tile.row + tile.rows;
    const auto seen = [&](int n, int row, int column) {
      if constexpr (kAll) return true;
      const int64_t before = query0 + row - (key0 + 8 * n + column);
      return before >= 0 && (window == 0 || before < window) && query0 + row < end;
    };
    PAGODA_UNROLL
    for (int n = 0; n < kCount; ++n) {
      for_sums([&](int i, int row, int column) {
        if (seen(n, row, column)) best[i / 2] = larger(scores[n][i], best[i / 2]);
      });
    }
    PAGODA_UNROLL
    for (int r = 0; r < 2; ++r) {
      best[r] = larger(join_row(best[r], Largest()) * scale, state.highest[r]);
      shrink[r] = best[r] == state.highest[r] ? 1.0f : exponential(state.highest[r] - best[r]);
      state.highest[r] = best[r];
    }
    PAGODA_UNROLL
    for (int n = 0; n < kCount; ++n) {
      for_sums([&](int i, int row, int column) {
        const float e = weight_of<T>(scores[n][i], scale, best[i / 2]);
        scores[n][i] = seen(n, row, column) ? e : 0.0f;
        sum[i / 2] += scores[n][i];
      });
    }
    PAGODA_UNROLL
    for (int r = 0; r < 2; ++r) state.sum[r] = state.sum[r] * shrink[r] + sum[r];
    PAGODA_UNROLL
    for (int n = 0; n < kWidth; ++n) {
      PAGODA_UNROLL
      for (int i = 0; i < 4; ++i) total[n][i] *= shrink[i / 2];
    }
  }

  PAGODA_GPU void store(const DocumentTile& tile, int64_t head, const SoftmaxRows& state,
                        const float (&total)[kWidth][4]) const {
    float reciprocal[2];
    PAGODA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float sum = join_row(state.sum[r], Sum());
      reciprocal[r] = 1.0f / sum;
      const int row = 16 * warp_number() + lane_number() / 4 + 8 * r;
      if (lane_number() % 4 == 0 && row < tile.rows) {
        lse[head * tokens + tile.row + row] = state.highest[r] + logf(sum);
      }
    }
    PAGODA_UNROLL
    for (int n = 0; n < kWidth; ++n) {
      for_sums([&](int i, int row, int column) {
        const int64_t t = 16 * warp_number() + row, dim = 8 * n + column;
        if (t >= tile.rows || dim >= q.head_dim) return;
        out[((tile.row + t) * heads + head) * q.head_dim + dim] =
            rounded<T>(total[n][i] * reciprocal[i / 2]);
      });
    }
  }
};

}  // namespace

void CudaOps::attention(DType dt, const AttentionShape& shape, const int32_t* document_start,
                        int64_t documents, const void* q, const void* k, const void* v, void* out,
                        float* lse, Stream& s) {
  check_attention(shape, document_start, documents);
  Queue queue(s, "attention");
  with_head_shape(processor_, dt, shape.head_dim, [&]<typename Shape>(Shape) {
    using Kernel = Attention<Shape>;
    using T = typename Kernel::T;
    const TilesOnDevice tiles(queue, document_start, documents, Kernel::kRows);
    const int64_t dim = shape.head_dim, stride = shape.qkv_stride;
    queue.launch(
        tiles.count() * shape.heads,
        Kernel{tiles.get(), shape.tokens, shape.heads, shape.heads / shape.kv_heads, shape.window,
               typed<T>(shape.sinks), heads_of<T>(q, stride, dim), heads_of<T>(k, stride, dim),
               heads_of<T>(v, stride, dim), typed<T>(out), lse, score_scale(dim)});
  });
}

}  // namespace pagoda::PAGODA_MACHINE
