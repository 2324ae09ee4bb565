// Cross-entropy of logits and its gradient, one chunk of rows.
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {
namespace {

constexpr int64_t kPiece = 4096;  // fp32 sums are joined in double, since vocabularies are long

double log_sum_exp(const float* logits, int64_t vocab) {
  const float highest = max_of(logits, vocab);
  double sum = 0.0;
  for (int64_t i = 0; i < vocab; i += kPiece) {
    sum += exp_sum(logits + i, std::min(kPiece, vocab - i), highest);
  }
  return static_cast<double>(highest) + std::log(sum);
}

// dlogits = (exp(logits - lse) - onehot) * scale, in pieces that stay in the L1 cache.
void gradient_row(DType dt, const float* logits, int32_t target, float lse, float scale,
                  int64_t vocab, void* dlogits) {
  for (int64_t i = 0; i < vocab; i += kPiece) {
    const int64_t count = std::min(kPiece, vocab - i);
    void* place = at(dt, dlogits, i);
    float* out = row_to_write(dt, place, count, Scratch::kRowA);
    exp_row(logits + i, count, lse, out);
    if (target >= i && target < i + count) out[target - i] -= 1.0f;
    scale_row(out, count, scale, out);
    write_row(dt, out, count, place);
  }
}

}  // namespace

void CpuOps::cross_entropy(DType dt, const float* logits, const int32_t* target,
                           const float* weight, int64_t n, int64_t vocab, float grad_scale,
                           void* dlogits, double* loss_sum, Stream& s) {
  CHECK(n >= 0 && vocab > 0);
  s.enqueue([=, pool = &s.pool()] {
    std::vector<double> loss(static_cast<size_t>(n), 0.0);
    for_blocks(*pool, n, rows_per_block(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float* row = logits + t * vocab;
        void* gradient = dlogits ? at(dt, dlogits, t * vocab) : nullptr;
        if (target[t] < 0) {
          if (gradient) std::memset(gradient, 0, static_cast<size_t>(vocab * dtype_bytes(dt)));
          continue;
        }
        CHECK(target[t] < vocab, "target %d of %lld", target[t], static_cast<long long>(vocab));
        const double lse = log_sum_exp(row, vocab);
        loss[static_cast<size_t>(t)] = weight[t] * (lse - row[target[t]]);
        if (!gradient) continue;
        gradient_row(dt, row, target[t], static_cast<float>(lse), weight[t] * grad_scale, vocab,
                     gradient);
      }
    });
    for (double term : loss) *loss_sum += term;
  });
}

}  // namespace pagoda
