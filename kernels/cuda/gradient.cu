// The end of a gradient: rounded to the type it is stored in, and measured.
#include "kernels/cuda/machine/reduce.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// A block a piece of 4096 elements, whose sum of squares is one of the terms.
template <typename T>
struct RoundAndMeasure {
  static constexpr int kThreads = 256, kSharedBytes = kThreads / kWarp * 8, kPiece = 4096;
  const float* g;
  int64_t n;
  T* out;
  double* terms;

  PAGODA_GPU void operator()() const {
    const int64_t first = block_number() * kPiece, end = smaller(n, first + kPiece);
    double sum = 0.0;
    for (int64_t i = first + thread_number(); i < end; i += kThreads) {
      const T kept = rounded<T>(g[i]);
      const double v = static_cast<double>(widen(kept));
      out[i] = kept;
      sum += v * v;
    }
    sum = join_block<kThreads>(sum, Sum(), reinterpret_cast<double*>(shared_memory()));
    if (thread_number() == 0) terms[block_number()] = sum;
  }
};

}  // namespace

void CudaOps::finish_gradient(DType dt, const float* g, int64_t n, void* out,
                              double* sum_of_squares, Stream& s) {
  CHECK(n >= 0);
  Queue queue(s, "finish_gradient");
  with_type(dt, [&]<typename T>(T) {
    using Kernel = RoundAndMeasure<T>;
    const int64_t pieces = div_ceil(n, Kernel::kPiece);
    Temporary<double> terms(queue, pieces);
    queue.launch(pieces, Kernel{g, n, typed<T>(out), terms.get()});
    queue.launch(1, OrderedSum<false>{terms.get(), pieces, sum_of_squares});
  });
}

}  // namespace pagoda::PAGODA_MACHINE
