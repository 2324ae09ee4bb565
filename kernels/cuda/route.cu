// The router's choice and its gradient: a warp a token, lane l its experts l, l + 32, ...
#include "kernels/cuda/machine/reduce.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

constexpr int kMostExperts = 32 * kWarp;  // a lane marks its experts in one word
constexpr int kWarps = 8;

struct Best {
  float prob;
  int32_t expert;
};
PAGODA_GPU Best better_of(Best a, Best b) {
  if (a.prob == b.prob) return a.expert < b.expert ? a : b;
  return a.prob > b.prob ? a : b;
}
PAGODA_GPU Best best_of_warp(Best best) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    best = better_of(best, {shuffle_xor(best.prob, mask), shuffle_xor(best.expert, mask)});
  }
  return best;
}

PAGODA_GPU float chosen_sum(const float* probs, const int32_t* experts, int64_t k) {
  float sum = 0.0f;
  for (int64_t j = 0; j < k; ++j) sum += probs[experts[j]];
  return sum;
}

struct RouteTokens {
  static constexpr int kThreads = kWarps * kWarp, kSharedBytes = 0;
  const float* logits;
  const uint8_t* padding;
  int64_t tokens, num_experts, k;
  bool renormalise, replay;
  float* probs;
  int32_t* experts;
  float* weights;

  PAGODA_GPU void softmax(const float* row, float* p) const {
    float highest = -INFINITY, sum = 0.0f;
    for (int64_t e = lane_number(); e < num_experts; e += kWarp) highest = larger(row[e], highest);
    highest = join_warp(highest, Largest());
    for (int64_t e = lane_number(); e < num_experts; e += kWarp) {
      p[e] = exponential(row[e] - highest);
      sum += p[e];
    }
    const float scale = 1.0f / join_warp(sum, Sum());
    for (int64_t e = lane_number(); e < num_experts; e += kWarp) p[e] *= scale;
    sync_warp();
  }

  // NaN is least, so a row of NaN chooses experts 0 .. k-1.
  PAGODA_GPU void choose(const float* p, int32_t* chosen) const {
    uint32_t taken = 0;
    for (int64_t j = 0; j < k; ++j) {
      Best best{-2.0f, INT32_MAX};
      for (int64_t e = lane_number(); e < num_experts; e += kWarp) {
        if (taken >> (e / kWarp) & 1u) continue;
        best = better_of(best, {p[e] >= 0.0f ? p[e] : -1.0f, static_cast<int32_t>(e)});
      }
      best = best_of_warp(best);
      if (best.expert % kWarp == lane_number()) taken |= 1u << (best.expert / kWarp);
      if (lane_number() == 0) chosen[j] = best.expert;
    }
    sync_warp();
  }

  PAGODA_GPU void operator()() const {
    const int64_t t = block_number() * kWarps + warp_number();
    if (t >= tokens) return;
    float* p = probs + t * num_experts;
    int32_t* chosen = experts + t * k;
    float* weight = weights + t * k;
    softmax(logits + t * num_experts, p);
    const bool skipped = replay ? chosen[0] < 0 : padding != nullptr && padding[t] != 0;
    if (!skipped && !replay) choose(p, chosen);
    const float sum = !skipped && renormalise ? chosen_sum(p, chosen, k) : 1.0f;
    for (int64_t j = lane_number(); j < k; j += kWarp) {
      if (skipped) chosen[j] = -1;
      weight[j] = skipped ? 0.0f : p[chosen[j]] / sum;
    }
  }
};

// A block kRowBlock tokens: how often they choose each expert, and the sums of its probabilities.
struct RouteTotals {
  static constexpr int kThreads = 256, kSharedBytes = 0;
  const float* probs;
  const int32_t* experts;
  int64_t tokens, num_experts, k;
  int32_t* counts;
  double* prob_sums;
  PAGODA_GPU void operator()() const {
    const int64_t first = block_number() * kRowBlock, end = smaller(tokens, first + kRowBlock);
    for (int64_t e = thread_number(); e < num_experts; e += kThreads) {
      int32_t count = 0;
      double sum = 0.0;
      for (int64_t t = first; t < end; ++t) {
        if (experts[t * k] < 0) continue;
        for (int64_t j = 0; j < k; ++j) count += experts[t * k + j] == e ? 1 : 0;
        sum += static_cast<double>(probs[t * num_experts + e]);
      }
      counts[block_number() * num_experts + e] = count;
      prob_sums[block_number() * num_experts + e] = sum;
    }
  }
};

struct JoinTotals {
  const int32_t* block_counts;
  const double* block_sums;
  int64_t blocks, num_experts;
  int32_t* counts;
  double* prob_sums;
  PAGODA_GPU void operator()(int64_t, int64_t e) const {
    int32_t count = 0;
    double sum = 0.0;
    for (int64_t i = 0; i < blocks; ++i) {
      count += block_counts[i * num_experts + e];
      sum += block_sums[i * num_experts + e];
    }
    counts[e] = count;
    prob_sums[e] = sum;
  }
};

template <typename T>
struct RouteBackward {
  static constexpr int kThreads = kWarps * kWarp, kSharedBytes = 0;
  const float* probs;
  const int32_t* experts;
  const float *weights, *dweights, *aux_grad;
  int64_t tokens, num_experts, k;
  bool renormalise;
  T* dlogits;

  PAGODA_GPU void operator()() const {
    const int64_t t = block_number() * kWarps + warp_number();
    if (t >= tokens) return;
    const float* p = probs + t * num_experts;
    const int32_t* chosen = experts + t * k;
    const float *weight = weights + t * k, *dweight = dweights + t * k;
    T* out = dlogits + t * num_experts;
    if (chosen[0] < 0) {
      for (int64_t e = lane_number(); e < num_experts; e += kWarp) out[e] = rounded<T>(0.0f);
      return;
    }
    float sum = 1.0f, mean = 0.0f;
    if (renormalise) {
      sum = chosen_sum(p, chosen, k);
      for (int64_t j = 0; j < k; ++j) mean += dweight[j] * weight[j];
    }
    const auto gradient = [&](int64_t e) {
      float dprob = aux_grad != nullptr ? aux_grad[e] : 0.0f;
      for (int64_t j = 0; j < k; ++j) {
        if (chosen[j] == e) dprob += (dweight[j] - mean) / sum;
      }
      return dprob;
    };
    float inner = 0.0f;
    for (int64_t e = lane_number(); e < num_experts; e += kWarp) inner += p[e] * gradient(e);
    inner = join_warp(inner, Sum());
    for (int64_t e = lane_number(); e < num_experts; e += kWarp) {
      out[e] = rounded<T>(p[e] * (gradient(e) - inner));
    }
  }
};

}  // namespace

void CudaOps::route(const float* logits, const uint8_t* padding, int64_t tokens,
                    int64_t num_experts, int64_t k, bool renormalise, bool replay, float* probs,
                    int32_t* experts, float* weights, int32_t* counts, double* prob_sums,
                    Stream& s) {
  CHECK(tokens >= 0 && k > 0 && k <= num_experts);
  CHECK(num_experts <= kMostExperts, "%lld experts; the GPU's router chooses among at most %d",
        static_cast<long long>(num_experts), kMostExperts);
  Queue queue(s, "route");
  queue.launch(div_ceil(tokens, kWarps), RouteTokens{logits, padding, tokens, num_experts, k,
                                                     renormalise, replay, probs, experts, weights});
  const int64_t blocks = div_ceil(tokens, kRowBlock);
  Temporary<int32_t> block_counts(queue, blocks * num_experts);
  Temporary<double> block_sums(queue, blocks * num_experts);
  queue.launch(blocks, RouteTotals{probs, experts, tokens, num_experts, k, block_counts.get(),
                                   block_sums.get()});
  for_each_element(queue, 1, num_experts, JoinTotals{block_counts.get(), block_sums.get(), blocks,
                                                     num_experts, counts, prob_sums});
}

void CudaOps::route_backward(DType dt, const float* probs, const int32_t* experts,
                             const float* weights, const float* dweights, const float* aux_grad,
                             int64_t tokens, int64_t num_experts, int64_t k, bool renormalise,
                             void* dlogits, Stream& s) {
  CHECK(tokens >= 0 && k > 0 && k <= num_experts);
  Queue queue(s, "route_backward");
  with_type(dt, [&]<typename T>(T) {
    queue.launch(div_ceil(tokens, kWarps),
                 RouteBackward<T>{probs, experts, weights, dweights, aux_grad, tokens, num_experts,
                                  k, renormalise, typed<T>(dlogits)});
  });
}

}  // namespace pagoda::PAGODA_MACHINE
