// Cross-entropy of logits and its gradient, one chunk of rows.
#include "kernels/cuda/machine/reduce.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// A block a row, in three passes over it: maximum, sum, gradient. fp32 sums of pieces are joined in
// double, since vocabularies are long. An element is read before its gradient is written, by the
// same thread: dlogits may take the logits' place.
template <typename T>
struct CrossEntropy {
  static constexpr int kThreads = 256, kSharedBytes = kThreads / kWarp * 8, kPiece = 4096;
  const float* logits;
  const int32_t* targets;
  const float* weight;
  int64_t vocab;
  float grad_scale;
  T* dlogits;
  double* losses;

  PAGODA_GPU double log_sum_exp(const float* row) const {
    float highest = -INFINITY;
    for (int64_t i = thread_number(); i < vocab; i += kThreads) highest = larger(row[i], highest);
    highest = join_block<kThreads>(highest, Largest(), reinterpret_cast<float*>(shared_memory()));
    double total = 0.0;
    for (int64_t first = 0; first < vocab; first += kPiece) {
      float sum = 0.0f;
      const int64_t end = smaller(vocab, first + kPiece);
      for (int64_t i = first + thread_number(); i < end; i += kThreads) {
        sum += exponential(row[i] - highest);
      }
      total += static_cast<double>(sum);
    }
    total = join_block<kThreads>(total, Sum(), reinterpret_cast<double*>(shared_memory()));
    return static_cast<double>(highest) + log(total);
  }

  PAGODA_GPU void operator()() const {
    const int64_t t = block_number();
    const float* row = logits + t * vocab;
    const int32_t target = targets[t];
    require(target < vocab);
    if (target < 0) {
      for (int64_t i = thread_number(); dlogits != nullptr && i < vocab; i += kThreads) {
        dlogits[t * vocab + i] = rounded<T>(0.0f);
      }
      if (thread_number() == 0) losses[t] = 0.0;
      return;
    }
    const double lse = log_sum_exp(row);
    if (thread_number() == 0) {
      losses[t] = static_cast<double>(weight[t]) * (lse - static_cast<double>(row[target]));
    }
    if (dlogits == nullptr) return;
    sync_block();  // the target's logit was read above
    const float shift = static_cast<float>(lse), scale = weight[t] * grad_scale;
    for (int64_t i = thread_number(); i < vocab; i += kThreads) {
      const float p = exponential(row[i] - shift);
      dlogits[t * vocab + i] = rounded<T>((i == target ? p - 1.0f : p) * scale);
    }
  }
};

}  // namespace

void CudaOps::cross_entropy(DType dt, const float* logits, const int32_t* target,
                            const float* weight, int64_t n, int64_t vocab, float grad_scale,
                            void* dlogits, double* loss_sum, Stream& s) {
  CHECK(n >= 0 && vocab > 0);
  Queue queue(s, "cross_entropy");
  Temporary<double> losses(queue, n);
  with_type(dt, [&]<typename T>(T) {
    queue.launch(n, CrossEntropy<T>{logits, target, weight, vocab, grad_scale, typed<T>(dlogits),
                                    losses.get()});
  });
  queue.launch(1, OrderedSum<true>{losses.get(), n, loss_sum});
}

}  // namespace pagoda::PAGODA_MACHINE
