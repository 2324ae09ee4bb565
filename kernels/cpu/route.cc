// The router's choice and its gradient.
#include <vector>

#include "base/target_clones.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {
namespace {

void softmax(const float* logits, int64_t n, float* probs) {
  const float sum = exp_row(logits, n, max_of(logits, n), probs);
  scale_row(probs, n, 1.0f / sum, probs);
}

// The k largest, largest first; of equal ones the lowest index. NaN is never larger, so a row of
// NaN chooses experts 0 .. k-1 and the loss shows the NaN.
void choose(const float* probs, int64_t n, int64_t k, int32_t* experts) {
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = -1;
    for (int32_t e = 0; e < n; ++e) {
      if (best >= 0 && !(probs[e] > probs[best])) continue;
      if (std::find(experts, experts + j, e) == experts + j) best = e;
    }
    experts[j] = best;
  }
}

float chosen_sum(const float* probs, const int32_t* experts, int64_t k) {
  float sum = 0.0f;
  for (int64_t j = 0; j < k; ++j) sum += probs[experts[j]];
  return sum;
}

void weigh(const float* probs, const int32_t* experts, int64_t k, bool renormalise,
           float* weights) {
  const float sum = renormalise ? chosen_sum(probs, experts, k) : 1.0f;
  for (int64_t j = 0; j < k; ++j) weights[j] = probs[experts[j]] / sum;
}

struct BlockTotals {
  std::vector<int32_t> counts;
  std::vector<double> prob_sums;
};

struct RouteBackward {
  const float* probs;
  const int32_t* experts;
  const float* weights;
  const float* dweights;
  const float* aux_grad;
  int64_t num_experts, k;
  bool renormalise;
};

// Gradient of one token's probabilities, through the weights and directly.
void probability_gradient(const RouteBackward& b, int64_t t, float* dprobs) {
  const float* probs = b.probs + t * b.num_experts;
  const int32_t* experts = b.experts + t * b.k;
  const float* weights = b.weights + t * b.k;
  const float* dweights = b.dweights + t * b.k;
  const bool padding = experts[0] < 0;
  const bool balanced = b.aux_grad && !padding;
  for (int64_t e = 0; e < b.num_experts; ++e) dprobs[e] = balanced ? b.aux_grad[e] : 0.0f;
  if (padding) return;
  float sum = 1.0f, mean = 0.0f;
  if (b.renormalise) {
    sum = chosen_sum(probs, experts, b.k);
    for (int64_t j = 0; j < b.k; ++j) mean += dweights[j] * weights[j];
  }
  for (int64_t j = 0; j < b.k; ++j) dprobs[experts[j]] += (dweights[j] - mean) / sum;
}

// dlogits = probs * (dprobs - sum(probs * dprobs))
PAGODA_TARGET_CLONES void softmax_gradient(const float* probs, const float* dprobs, float inner,
                                           int64_t n, float* dlogits) {
  for (int64_t e = 0; e < n; ++e) dlogits[e] = probs[e] * (dprobs[e] - inner);
}

}  // namespace

void CpuOps::route(const float* logits, const uint8_t* padding, int64_t tokens,
                   int64_t num_experts, int64_t k, bool renormalise, bool replay, float* probs,
                   int32_t* experts, float* weights, int32_t* counts, double* prob_sums,
                   Stream& s) {
  CHECK(tokens >= 0 && k > 0 && k <= num_experts);
  s.enqueue([=, pool = &s.pool()] {
    std::vector<BlockTotals> totals(static_cast<size_t>(div_ceil(tokens, kRowBlock)));
    for_blocks(*pool, tokens, kRowBlock, [&](int64_t begin, int64_t end) {
      BlockTotals& block = totals[static_cast<size_t>(begin / kRowBlock)];
      block.counts.assign(static_cast<size_t>(num_experts), 0);
      block.prob_sums.assign(static_cast<size_t>(num_experts), 0.0);
      for (int64_t t = begin; t < end; ++t) {
        float* p = probs + t * num_experts;
        int32_t* chosen = experts + t * k;
        softmax(logits + t * num_experts, num_experts, p);
        if (replay ? chosen[0] < 0 : padding && padding[t] != 0) {
          std::fill_n(chosen, k, -1);
          std::fill_n(weights + t * k, k, 0.0f);
          continue;
        }
        if (!replay) choose(p, num_experts, k, chosen);
        weigh(p, chosen, k, renormalise, weights + t * k);
        for (int64_t j = 0; j < k; ++j) ++block.counts[static_cast<size_t>(chosen[j])];
        for (int64_t e = 0; e < num_experts; ++e) block.prob_sums[static_cast<size_t>(e)] += p[e];
      }
    });
    for (int64_t e = 0; e < num_experts; ++e) {
      counts[e] = 0;
      prob_sums[e] = 0.0;
      for (const BlockTotals& block : totals) {
        counts[e] += block.counts[static_cast<size_t>(e)];
        prob_sums[e] += block.prob_sums[static_cast<size_t>(e)];
      }
    }
  });
}

void CpuOps::route_backward(DType dt, const float* probs, const int32_t* experts,
                            const float* weights, const float* dweights, const float* aux_grad,
                            int64_t tokens, int64_t num_experts, int64_t k, bool renormalise,
                            void* dlogits, Stream& s) {
  CHECK(tokens >= 0 && k > 0 && k <= num_experts);
  const RouteBackward b{probs, experts, weights, dweights, aux_grad, num_experts, k, renormalise};
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, tokens, kRowBlock, [&](int64_t begin, int64_t end) {
      float* dprobs = scratch_floats(Scratch::kRowA, num_experts);
      for (int64_t t = begin; t < end; ++t) {
        const float* p = probs + t * num_experts;
        void* place = at(dt, dlogits, t * num_experts);
        probability_gradient(b, t, dprobs);
        float* row = row_to_write(dt, place, num_experts, Scratch::kRowB);
        softmax_gradient(p, dprobs, dot(p, dprobs, num_experts), num_experts, row);
        write_row(dt, row, num_experts, place);
      }
    });
  });
}

void CpuOps::index_rows(const int32_t* experts, int64_t tokens, int64_t k, int64_t num_experts,
                        const int64_t* first, int32_t* rows, int32_t* choices, Stream& s) {
  CHECK(tokens >= 0 && k > 0 && num_experts > 0);
  s.enqueue([=, next = std::vector<int64_t>(first, first + num_experts)]() mutable {
    for (int64_t choice = 0; choice < tokens * k; ++choice) {
      if (experts[choice] < 0) continue;
      const int64_t place = next[static_cast<size_t>(experts[choice])]++;
      rows[place] = static_cast<int32_t>(choice / k);
      choices[place] = static_cast<int32_t>(choice);
    }
  });
}

}  // namespace pagoda
