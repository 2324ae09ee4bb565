// Rows moved, summed and cleared; the embedding table; the gate of a shared expert.
#include "kernels/cuda/machine/numbers.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

template <typename T>
struct Gather {
  const T* x;
  const int32_t* rows;
  int64_t columns;
  T* out;
  PAGODA_GPU void operator()(int64_t i, int64_t j) const {
    out[i * columns + j] = x[rows[i] * columns + j];
  }
};

template <typename T>
struct ScatterAdd {
  const T* x;
  const int32_t* rows;
  const float* scale;
  int64_t columns;
  float* y;
  PAGODA_GPU void operator()(int64_t i, int64_t j) const {
    const float factor = scale != nullptr ? scale[i] : 1.0f;
    y[rows[i] * columns + j] += factor * widen(x[i * columns + j]);
  }
};

// Runs as a part of a kernel's arguments. Blocks: the rows of one run after the other.
struct Runs {
  struct Run {
    int32_t from, to, count;
  };
  int32_t count;
  Run of[kMostTogether];

  explicit Runs(std::span<const RowRun> runs) : count(narrow<int32_t>(std::ssize(runs))) {
    CHECK(count <= kMostTogether);
    for (int32_t r = 0; r < count; ++r) {
      const RowRun& run = runs[static_cast<size_t>(r)];
      CHECK(run.from >= 0 && run.to >= 0 && run.count >= 0);
      of[r] = {narrow<int32_t>(run.from), narrow<int32_t>(run.to), narrow<int32_t>(run.count)};
    }
  }
  int64_t rows() const {
    int64_t rows = 0;
    for (int32_t r = 0; r < count; ++r) rows += of[r].count;
    return rows;
  }
  // The run that this block's row is of; `row` becomes its place in the run.
  PAGODA_GPU int32_t find(int64_t& row) const {
    row = block_number();
    int32_t r = 0;
    while (row >= of[r].count) row -= of[r++].count;
    return r;
  }
};

template <typename T>
struct GatherRuns {
  static constexpr int kThreads = 128, kSharedBytes = 0;
  const T* x;
  const int32_t* rows;
  int64_t columns;
  T* out;
  Runs runs;
  PAGODA_GPU void operator()() const {
    int64_t row;
    const Runs::Run& run = runs.of[runs.find(row)];
    const T* from = x + rows[run.from + row] * columns;
    for (int64_t j = thread_number(); j < columns; j += kThreads) {
      out[(run.to + row) * columns + j] = from[j];
    }
  }
};

struct LocateRuns {
  static constexpr int kThreads = 32, kSharedBytes = 0;
  const unsigned char* x;
  const int32_t* rows;  // none: the matrix's own
  int64_t row_bytes;
  const void** out;
  Runs runs;
  PAGODA_GPU void operator()() const {
    if (thread_number() != 0) return;
    int64_t row;
    const Runs::Run& run = runs.of[runs.find(row)];
    const int64_t from = rows != nullptr ? rows[run.from + row] : run.from + row;
    out[run.to + row] = x + from * row_bytes;
  }
};

template <typename T>
struct CopyRuns {
  static constexpr int kThreads = 128, kSharedBytes = 0;
  const T* x;
  int64_t columns;
  T* out;
  Runs runs;
  PAGODA_GPU void operator()() const {
    int64_t row;
    const Runs::Run& run = runs.of[runs.find(row)];
    for (int64_t j = thread_number(); j < columns; j += kThreads) {
      out[(run.to + row) * columns + j] = x[(run.from + row) * columns + j];
    }
  }
};

// If rows of several runs meet in a row of y, the thread block of the first run's row adds them
// all, in the runs' order; those of the others do nothing. So every row of y has one writer.
template <typename T>
struct ScatterAddRuns {
  static constexpr int kThreads = 128, kSharedBytes = kMostTogether * 4;
  static_assert(kMostTogether <= kThreads);
  const T* x;
  const int32_t* rows;
  const float* scale;
  int64_t columns;
  float* y;
  Runs runs;

  // Where `target` stands in the run, whose rows ascend; -1: nowhere.
  PAGODA_GPU int32_t place_in(const Runs::Run& run, int32_t target) const {
    const int32_t* list = rows + run.from;
    int32_t first = 0, end = run.count;
    while (first < end) {
      const int32_t middle = (first + end) / 2;
      if (list[middle] < target) {
        first = middle + 1;
      } else {
        end = middle;
      }
    }
    return first < run.count && list[first] == target ? first : -1;
  }

  PAGODA_GPU void operator()() const {
    int32_t* found = reinterpret_cast<int32_t*>(shared_memory());
    int64_t row;
    const int32_t own = runs.find(row);
    const int32_t target = rows[runs.of[own].from + row];
    const int thread = thread_number();
    if (thread < runs.count) {
      found[thread] = thread == own ? static_cast<int32_t>(row)
                                    : place_in(runs.of[thread], target);
    }
    sync_block();
    for (int32_t r = 0; r < own; ++r) {
      if (found[r] >= 0) return;
    }
    for (int64_t j = thread; j < columns; j += kThreads) {
      float sum = y[target * columns + j];
      for (int32_t r = own; r < runs.count; ++r) {
        if (found[r] < 0) continue;
        const int64_t from = runs.of[r].to + found[r];
        const float factor = scale != nullptr ? scale[from] : 1.0f;
        sum += factor * widen(x[from * columns + j]);
      }
      y[target * columns + j] = sum;
    }
  }
};

struct ScaleRows {
  const float* scale;
  int64_t columns;
  float* x;
  PAGODA_GPU void operator()(int64_t i, int64_t j) const { x[i * columns + j] *= scale[i]; }
};

template <typename T>
struct Scale {
  float factor;
  T* x;
  PAGODA_GPU void operator()(int64_t i, int64_t) const { x[i] = rounded<T>(factor * widen(x[i])); }
};

struct Sigmoid {
  const float* logits;
  float* out;
  PAGODA_GPU void operator()(int64_t i, int64_t) const { out[i] = sigmoid_of(logits[i]); }
};

template <typename T>
struct SigmoidBackward {
  const float *out, *dout;
  T* dlogits;
  PAGODA_GPU void operator()(int64_t i, int64_t) const {
    dlogits[i] = rounded<T>(dout[i] * (out[i] * (1.0f - out[i])));
  }
};

template <typename T, typename B>
struct Add {
  const T* a;
  const B* b;
  T* out;
  PAGODA_GPU void operator()(int64_t i, int64_t) const {
    out[i] = rounded<T>(widen(a[i]) + widen(b[i]));
  }
};

// A block some columns of a token's row. An id's first token adds all of its tokens' rows, in
// order; the others do nothing, so every row of the table has one writer.
template <typename T>
struct EmbeddingBackward {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr int kSharedBytes = (kWarps + kThreads) * 4;
  static constexpr int kAtOnce = 8;  // rows on their way
  const int32_t* ids;
  const T* dout;
  int64_t tokens, dim, pad_token;
  float* dtable;

  PAGODA_BOTH static int64_t blocks_of_row(int64_t dim) { return tiles_of(dim, kThreads); }

  PAGODA_GPU void operator()() const {
    const int64_t token = quotient(block_number(), blocks_of_row(dim));
    const int64_t column =
        (block_number() - token * blocks_of_row(dim)) * kThreads + thread_number();
    const int32_t id = ids[token];
    if (id == pad_token) return;
    for (int64_t first = 0; first < token; first += kThreads) {
      const int64_t t = first + thread_number();
      if (any_in_block(t < token && ids[t] == id)) return;
    }
    float* target = dtable + id * dim + column;
    float sum = column < dim ? *target : 0.0f;
    for (int64_t first = token; first < tokens; first += kThreads) {
      const int count = list(first, id);
      for (int i = 0; i < count; i += kAtOnce) {
        T row[kAtOnce];
        PAGODA_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          if (i + j < count && column < dim) {
            row[j] = dout[(first + listed()[i + j]) * dim + column];
          }
        }
        PAGODA_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          if (i + j < count && column < dim) sum += widen(row[j]);
        }
      }
      sync_block();
    }
    if (column < dim) *target = sum;
  }

  PAGODA_GPU static int32_t* listed() {
    return reinterpret_cast<int32_t*>(shared_memory()) + kWarps;
  }
  // Lists which of kThreads tokens from `first` on have the id. Returns how many.
  PAGODA_GPU int list(int64_t first, int32_t id) const {
    uint32_t* same = reinterpret_cast<uint32_t*>(shared_memory());
    const int64_t t = first + thread_number();
    const uint32_t found = ballot(t < tokens && ids[t] == id);
    if (lane_number() == 0) same[warp_number()] = found;
    sync_block();
    int before = 0, count = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      const int there = bits_set(same[warp]);
      if (warp < warp_number()) before += there;
      count += there;
    }
    if ((found >> lane_number() & 1u) != 0) {
      before += bits_set(found & ((1u << lane_number()) - 1u));
      listed()[before] = thread_number();
    }
    sync_block();
    return count;
  }
};

}  // namespace

void CudaOps::embedding(DType dt, const int32_t* ids, const void* table, int64_t tokens,
                        int64_t dim, void* out, Stream& s) {
  gather_rows(dt, table, ids, tokens, dim, out, s);
}

void CudaOps::embedding_backward(DType dt, const int32_t* ids, const void* dout, int64_t tokens,
                                 int64_t dim, int64_t pad_token, float* dtable, Stream& s) {
  CHECK(tokens >= 0 && dim > 0);
  Queue queue(s, "embedding_backward");
  with_type(dt, [&]<typename T>(T) {
    using Kernel = EmbeddingBackward<T>;
    queue.launch(tokens * Kernel::blocks_of_row(dim),
                 Kernel{ids, typed<T>(dout), tokens, dim, pad_token, dtable});
  });
}

void CudaOps::gather_rows(DType dt, const void* x, const int32_t* rows, int64_t n, int64_t dim,
                          void* out, Stream& s) {
  CHECK(n >= 0 && dim > 0);
  Queue queue(s, "gather_rows");
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, n, dim, Gather<T>{typed<T>(x), rows, dim, typed<T>(out)});
  });
}

void CudaOps::scatter_add_rows(DType dt, const void* x, const int32_t* rows, const float* scale,
                               int64_t n, int64_t dim, float* y, Stream& s) {
  CHECK(n >= 0 && dim > 0);
  Queue queue(s, "scatter_add_rows");
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, n, dim, ScatterAdd<T>{typed<T>(x), rows, scale, dim, y});
  });
}

void CudaOps::gather_row_runs(DType dt, const void* x, const int32_t* rows,
                              std::span<const RowRun> runs, int64_t dim, void* out, Stream& s) {
  CHECK(dim > 0);
  Queue queue(s, "gather_row_runs");
  in_launches(runs, [&](std::span<const RowRun> some) {
    with_type(dt, [&]<typename T>(T) {
      const GatherRuns<T> kernel{typed<T>(x), rows, dim, typed<T>(out), Runs(some)};
      queue.launch(kernel.runs.rows(), kernel);
    });
  });
}

void CudaOps::locate_rows(DType dt, const void* x, const int32_t* rows,
                          std::span<const RowRun> runs, int64_t dim, const void** out, Stream& s) {
  CHECK(dim > 0);
  Queue queue(s, "locate_rows");
  in_launches(runs, [&](std::span<const RowRun> some) {
    const LocateRuns kernel{static_cast<const unsigned char*>(x), rows, dim * dtype_bytes(dt), out,
                            Runs(some)};
    queue.launch(kernel.runs.rows(), kernel);
  });
}

void CudaOps::copy_row_runs(DType dt, const void* x, std::span<const RowRun> runs, int64_t dim,
                            void* out, Stream& s) {
  CHECK(dim > 0);
  Queue queue(s, "copy_row_runs");
  in_launches(runs, [&](std::span<const RowRun> some) {
    with_type(dt, [&]<typename T>(T) {
      const CopyRuns<T> kernel{typed<T>(x), dim, typed<T>(out), Runs(some)};
      queue.launch(kernel.runs.rows(), kernel);
    });
  });
}

void CudaOps::scatter_add_row_runs(DType dt, const void* x, const int32_t* rows,
                                   const float* scale, std::span<const RowRun> runs, int64_t dim,
                                   float* y, Stream& s) {
  CHECK(dim > 0);
  Queue queue(s, "scatter_add_row_runs");
  in_launches(runs, [&](std::span<const RowRun> some) {
    with_type(dt, [&]<typename T>(T) {
      const ScatterAddRuns<T> kernel{typed<T>(x), rows, scale, dim, y, Runs(some)};
      queue.launch(kernel.runs.rows(), kernel);
    });
  });
}

void CudaOps::scale_rows(const float* scale, int64_t n, int64_t dim, float* x, Stream& s) {
  CHECK(n >= 0 && dim > 0);
  Queue queue(s, "scale_rows");
  for_each_element(queue, n, dim, ScaleRows{scale, dim, x});
}

void CudaOps::scale(DType dt, float factor, int64_t n, void* x, Stream& s) {
  CHECK(n >= 0);
  Queue queue(s, "scale");
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, n, 1, Scale<T>{factor, typed<T>(x)});
  });
}

void CudaOps::sigmoid(const float* logits, int64_t n, float* out, Stream& s) {
  CHECK(n >= 0);
  Queue queue(s, "sigmoid");
  for_each_element(queue, n, 1, Sigmoid{logits, out});
}

void CudaOps::sigmoid_backward(DType dt, const float* out, const float* dout, int64_t n,
                               void* dlogits, Stream& s) {
  CHECK(n >= 0);
  Queue queue(s, "sigmoid_backward");
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, n, 1, SigmoidBackward<T>{out, dout, typed<T>(dlogits)});
  });
}

void CudaOps::add(DType dt, const void* a, DType b_dt, const void* b, int64_t n, void* out,
                  Stream& s) {
  CHECK(n >= 0);
  Queue queue(s, "add");
  with_type(dt, [&]<typename T>(T) {
    with_type(b_dt, [&]<typename B>(B) {
      for_each_element(queue, n, 1, Add<T, B>{typed<T>(a), typed<B>(b), typed<T>(out)});
    });
  });
}

void CudaOps::fill_zero(void* x, int64_t bytes, Stream& s) {
  CHECK(bytes >= 0);
  Queue(s, "fill_zero").zero(x, bytes);
}

}  // namespace pagoda::PAGODA_MACHINE
