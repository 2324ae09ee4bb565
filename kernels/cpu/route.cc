// The router's choice and its gradient.
#include <cmath>
#include <limits>
#include <vector>

#include "base/target_clones.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"
#include "kernels/cpu/rows/vector.h"

namespace pagoda {
namespace {

constexpr float kLeastSum = 1e-20f;  // what keeps a quotient of scores that all vanish finite

void softmax(const float* logits, int64_t n, float* probs) {
  const float sum = exp_row(logits, n, max_of(logits, n), probs);
  scale_row(probs, n, 1.0f / sum, probs);
}

PAGODA_TARGET_CLONES void sigmoids(const float* logits, int64_t n, float* probs) {
  for_lanes(n, [&](int64_t i, int64_t count) PAGODA_INLINE_LAMBDA {
    store_lanes(probs + i, sigmoid_lanes(load_lanes(logits + i, count)), count);
  });
}

// What experts are chosen by. NaN is less than any number.
void merits(const float* probs, const float* correction, int64_t n, float* merit) {
  for (int64_t e = 0; e < n; ++e) {
    const float sum = correction != nullptr ? probs[e] + correction[e] : probs[e];
    merit[e] = std::isnan(sum) ? std::numeric_limits<float>::lowest() : sum;
  }
}

// The k largest, largest first; of equal ones the lowest index.
void choose(const float* merit, int64_t n, int64_t k, int32_t* chosen) {
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = -1;
    for (int32_t e = 0; e < n; ++e) {
      if (best >= 0 && !(merit[e] > merit[best])) continue;
      if (std::find(chosen, chosen + j, e) == chosen + j) best = e;
    }
    chosen[j] = best;
  }
}

float group_merit(const RouterShape& shape, const float* merit, int64_t n) {
  float first = merit[0], second = -INFINITY;
  for (int64_t i = 1; i < n; ++i) {
    second = std::max(second, std::min(first, merit[i]));
    first = std::max(first, merit[i]);
  }
  return shape.group_by_best ? first : first + second;
}

// Leaves only the experts of the best groups to choose from.
void exclude_groups(const RouterShape& shape, float* merit) {
  const int64_t size = shape.num_experts / shape.groups;
  std::vector<float> sums;
  for (int64_t g = 0; g < shape.groups; ++g) {
    sums.push_back(group_merit(shape, merit + g * size, size));
  }
  std::vector<int32_t> kept(static_cast<size_t>(shape.groups_chosen));
  choose(sums.data(), shape.groups, shape.groups_chosen, kept.data());
  for (int64_t g = 0; g < shape.groups; ++g) {
    if (std::find(kept.begin(), kept.end(), g) != kept.end()) continue;
    std::fill_n(merit + g * size, size, -INFINITY);
  }
}

float chosen_sum(const RouterShape& shape, const float* probs, const int32_t* experts) {
  float sum = 0.0f;
  for (int64_t j = 0; j < shape.k; ++j) sum += probs[experts[j]];
  return sum + shape.least_sum;
}

void weigh(const RouterShape& shape, const float* probs, const int32_t* experts, float* weights) {
  const float sum = shape.renormalise ? chosen_sum(shape, probs, experts) : 1.0f;
  for (int64_t j = 0; j < shape.k; ++j) weights[j] = probs[experts[j]] / sum * shape.scale;
}

// The sum of a token's scores, in order, and with it each expert's share.
float score_sum(const float* probs, int64_t n) {
  float sum = 0.0f;
  for (int64_t e = 0; e < n; ++e) sum += probs[e];
  return sum + kLeastSum;
}

// (E) the sums of a correction's three parts.
std::vector<float> whole_correction(DType dt, const void* parts, int64_t n) {
  const float* all = read_row(dt, parts, 3 * n, Scratch::kRowA);
  std::vector<float> sum;
  for (int64_t e = 0; e < n; ++e) sum.push_back(all[e] + all[n + e] + all[2 * n + e]);
  return sum;
}

struct BlockTotals {
  std::vector<int32_t> counts;
  std::vector<double> prob_sums;
};

// Chooses a token's experts by its scores.
void choose_experts(const RouterShape& shape, const float* probs, const float* correction,
                    int32_t* experts) {
  float* merit = scratch_floats(Scratch::kRowA, shape.num_experts);
  merits(probs, correction, shape.num_experts, merit);
  if (shape.excludes()) exclude_groups(shape, merit);
  choose(merit, shape.num_experts, shape.k, experts);
}

void count(const RouterShape& shape, const float* probs, const int32_t* experts,
           BlockTotals& block) {
  for (int64_t j = 0; j < shape.k; ++j) ++block.counts[static_cast<size_t>(experts[j])];
  const float sum = shape.sigmoid ? score_sum(probs, shape.num_experts) : 1.0f;
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    block.prob_sums[static_cast<size_t>(e)] += probs[e] / sum;
  }
}

struct RouteBackward {
  RouterShape shape;
  const float* probs;
  const int32_t* experts;
  const float* weights;
  const float* dweights;
  const float* aux_grad;
  const float* log_sums;
  float z_slope;

  // The gradient of the token's log sum, whose own gradient is probs.
  float of_log_sum(int64_t t) const {
    return log_sums != nullptr && experts[t * shape.k] >= 0 ? z_slope * log_sums[t] : 0.0f;
  }
};

// Direct gradients of a token's scores, by their shares.
void share_gradient(const RouteBackward& b, const float* probs, float* dprobs) {
  const int64_t n = b.shape.num_experts;
  for (int64_t e = 0; e < n; ++e) dprobs[e] = b.aux_grad ? b.aux_grad[e] : 0.0f;
  if (!b.shape.sigmoid) return;
  const float sum = score_sum(probs, n), mean = dot(probs, dprobs, n) / sum;
  for (int64_t e = 0; e < n; ++e) dprobs[e] = (dprobs[e] - mean) / sum;
}

// Gradient of one token's scores, through the weights and directly.
void probability_gradient(const RouteBackward& b, int64_t t, float* dprobs) {
  const int64_t k = b.shape.k;
  const float* probs = b.probs + t * b.shape.num_experts;
  const int32_t* experts = b.experts + t * k;
  const float* weights = b.weights + t * k;
  const float* dweights = b.dweights + t * k;
  if (experts[0] < 0) {
    std::fill_n(dprobs, b.shape.num_experts, 0.0f);
    return;
  }
  share_gradient(b, probs, dprobs);
  float sum = 1.0f, mean = 0.0f;
  if (b.shape.renormalise) {
    sum = chosen_sum(b.shape, probs, experts);
    for (int64_t j = 0; j < k; ++j) mean += dweights[j] * weights[j];
  }
  for (int64_t j = 0; j < k; ++j) {
    dprobs[experts[j]] += (dweights[j] * b.shape.scale - mean) / sum;
  }
}

// dlogits = probs * (dprobs - sum(probs * dprobs))
PAGODA_TARGET_CLONES void softmax_gradient(const float* probs, const float* dprobs, float inner,
                                           int64_t n, float* dlogits) {
  for (int64_t e = 0; e < n; ++e) dlogits[e] = probs[e] * (dprobs[e] - inner);
}

PAGODA_TARGET_CLONES void sigmoid_gradient(const float* probs, const float* dprobs, int64_t n,
                                           float* dlogits) {
  for (int64_t e = 0; e < n; ++e) dlogits[e] = dprobs[e] * (probs[e] * (1.0f - probs[e]));
}

// Sums of the blocks, in order.
void join(const std::vector<BlockTotals>& totals, int64_t num_experts, int32_t* counts,
          double* prob_sums) {
  for (int64_t e = 0; e < num_experts; ++e) {
    counts[e] = 0;
    prob_sums[e] = 0.0;
    for (const BlockTotals& block : totals) {
      counts[e] += block.counts[static_cast<size_t>(e)];
      prob_sums[e] += block.prob_sums[static_cast<size_t>(e)];
    }
  }
}

}  // namespace

void CpuOps::route(const RouterShape& shape, const float* logits, DType dt,
                   const void* correction, const uint8_t* padding, int64_t tokens, bool replay,
                   float* probs, int32_t* experts, float* weights, int32_t* counts,
                   double* prob_sums, Stream& s) {
  CHECK(tokens >= 0);
  shape.check();
  s.enqueue([=, pool = &s.pool()] {
    const int64_t n = shape.num_experts, k = shape.k;
    std::vector<float> corrections;
    if (correction != nullptr) corrections = whole_correction(dt, correction, n);
    std::vector<BlockTotals> totals(static_cast<size_t>(div_ceil(tokens, kRowBlock)));
    for_blocks(*pool, tokens, kRowBlock, [&](int64_t begin, int64_t end) {
      BlockTotals& block = totals[static_cast<size_t>(begin / kRowBlock)];
      block.counts.assign(static_cast<size_t>(n), 0);
      block.prob_sums.assign(static_cast<size_t>(n), 0.0);
      for (int64_t t = begin; t < end; ++t) {
        float* p = probs + t * n;
        int32_t* chosen = experts + t * k;
        shape.sigmoid ? sigmoids(logits + t * n, n, p) : softmax(logits + t * n, n, p);
        if (replay ? chosen[0] < 0 : padding && padding[t] != 0) {
          std::fill_n(chosen, k, -1);
          std::fill_n(weights + t * k, k, 0.0f);
          continue;
        }
        if (!replay) choose_experts(shape, p, correction ? corrections.data() : nullptr, chosen);
        weigh(shape, p, chosen, weights + t * k);
        count(shape, p, chosen, block);
      }
    });
    join(totals, n, counts, prob_sums);
  });
}

void CpuOps::route_backward(DType dt, const RouterShape& shape, const float* probs,
                            const int32_t* experts, const float* weights, const float* dweights,
                            const float* aux_grad, const float* log_sums, float z_slope,
                            int64_t tokens, void* dlogits, Stream& s) {
  CHECK(tokens >= 0);
  CHECK(log_sums == nullptr || !shape.sigmoid);
  shape.check();
  const RouteBackward b{shape, probs, experts, weights, dweights, aux_grad, log_sums, z_slope};
  s.enqueue([=, pool = &s.pool()] {
    const int64_t n = b.shape.num_experts;
    for_blocks(*pool, tokens, kRowBlock, [&](int64_t begin, int64_t end) {
      float* dprobs = scratch_floats(Scratch::kRowA, n);
      for (int64_t t = begin; t < end; ++t) {
        const float* p = probs + t * n;
        void* place = at(dt, dlogits, t * n);
        probability_gradient(b, t, dprobs);
        float* row = row_to_write(dt, place, n, Scratch::kRowB);
        if (b.shape.sigmoid) {
          sigmoid_gradient(p, dprobs, n, row);
        } else {
          softmax_gradient(p, dprobs, dot(p, dprobs, n) - b.of_log_sum(t), n, row);
        }
        write_row(dt, row, n, place);
      }
    });
  });
}

void CpuOps::log_sums(const float* logits, const uint8_t* padding, int64_t tokens,
                      int64_t num_experts, float* log_sums, double* square_sum, Stream& s) {
  CHECK(tokens >= 0 && num_experts > 0);
  s.enqueue([=, pool = &s.pool()] {
    for_blocks(*pool, tokens, kRowBlock, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float* row = logits + t * num_experts;
        const float highest = max_of(row, num_experts);
        log_sums[t] = highest + std::log(exp_sum(row, num_experts, highest));
      }
    });
    *square_sum = 0.0;
    for (int64_t t = 0; t < tokens; ++t) {
      const double log_sum = log_sums[t];
      if (padding == nullptr || padding[t] == 0) *square_sum += log_sum * log_sum;
    }
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
