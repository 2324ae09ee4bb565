// The router's choice and its gradient: a warp a token, lane l its experts l, l + 32, ...
#include "kernels/cuda/machine/reduce.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

constexpr int kMostExperts = 32 * kWarp;  // a lane marks its experts in one word
constexpr int kWarps = 8;
constexpr float kLeastSum = 1e-20f;  // what keeps a quotient of scores that all vanish finite

struct Best {
  float merit;
  int32_t index;
};
PAGODA_GPU Best better_of(Best a, Best b) {
  if (a.merit == b.merit) return a.index < b.index ? a : b;
  return a.merit > b.merit ? a : b;
}
PAGODA_GPU Best best_of_warp(Best best) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    best = better_of(best, {shuffle_xor(best.merit, mask), shuffle_xor(best.index, mask)});
  }
  return best;
}

PAGODA_GPU float chosen_sum(const RouterShape& shape, const float* probs,
                            const int32_t* experts) {
  float sum = 0.0f;
  for (int64_t j = 0; j < shape.k; ++j) sum += probs[experts[j]];
  return sum + shape.least_sum;
}
// The sum of a token's scores.
PAGODA_GPU float score_sum(const float* p, int64_t num_experts) {
  float sum = 0.0f;
  for (int64_t e = lane_number(); e < num_experts; e += kWarp) sum += p[e];
  return join_warp(sum, Sum()) + kLeastSum;
}

template <typename T>
struct RouteTokens {
  static constexpr int kThreads = kWarps * kWarp, kSharedBytes = 0;
  RouterShape shape;
  const float* logits;
  const T* correction;
  const uint8_t* padding;
  int64_t tokens;
  bool replay;
  float* probs;
  int32_t* experts;
  float* weights;

  PAGODA_GPU void softmax(const float* row, float* p) const {
    float highest = -INFINITY, sum = 0.0f;
    const int64_t n = shape.num_experts;
    for (int64_t e = lane_number(); e < n; e += kWarp) highest = larger(row[e], highest);
    highest = join_warp(highest, Largest());
    for (int64_t e = lane_number(); e < n; e += kWarp) {
      p[e] = exponential(row[e] - highest);
      sum += p[e];
    }
    const float scale = 1.0f / join_warp(sum, Sum());
    for (int64_t e = lane_number(); e < n; e += kWarp) p[e] *= scale;
    sync_warp();
  }
  PAGODA_GPU void sigmoids(const float* row, float* p) const {
    for (int64_t e = lane_number(); e < shape.num_experts; e += kWarp) p[e] = sigmoid_of(row[e]);
    sync_warp();
  }

  // What experts are chosen by. NaN is less than any number.
  PAGODA_GPU float merit(const float* p, int64_t e) const {
    float sum = p[e];
    if (correction != nullptr) {
      const int64_t n = shape.num_experts;
      sum += widen(correction[e]) + widen(correction[n + e]) + widen(correction[2 * n + e]);
    }
    return sum == sum ? sum : -3.402823466e38f;
  }
  PAGODA_GPU float group_merit(const float* p, int64_t group, int64_t size) const {
    float first = merit(p, group * size), second = -INFINITY;
    for (int64_t e = group * size + 1; e < (group + 1) * size; ++e) {
      const float next = merit(p, e);
      second = larger(second, first < next ? first : next);
      first = larger(first, next);
    }
    return shape.group_by_best ? first : first + second;
  }

  // The best of n, of which a lane marks in `taken` its own that are no longer there, and marks it.
  template <typename Merit>
  PAGODA_GPU int32_t take_best(int64_t n, const Merit& merit_of, uint32_t& taken) const {
    Best best{-INFINITY, INT32_MAX};
    for (int64_t i = lane_number(); i < n; i += kWarp) {
      if (taken >> (i / kWarp) & 1u) continue;
      best = better_of(best, {merit_of(i), static_cast<int32_t>(i)});
    }
    best = best_of_warp(best);
    if (best.index % kWarp == lane_number()) taken |= 1u << (best.index / kWarp);
    return best.index;
  }

  // A lane's own experts that are not in the best groups.
  PAGODA_GPU uint32_t excluded(const float* p) const {
    const int64_t size = shape.num_experts / shape.groups;
    uint32_t kept = 0, out = 0;
    for (int64_t j = 0; j < shape.groups_chosen; ++j) {
      take_best(shape.groups, [&](int64_t g) { return group_merit(p, g, size); }, kept);
    }
    for (int64_t first = 0; first < shape.num_experts; first += kWarp) {
      const int64_t e = smaller(first + lane_number(), shape.num_experts - 1), group = e / size;
      // Shuffles move a word of one lane to all, group by group of these experts.
      for (int64_t g = first / size; g <= smaller(first + kWarp - 1, shape.num_experts - 1) / size;
           ++g) {
        const uint32_t word = shuffle(kept, static_cast<int>(g % kWarp));
        if (g == group && (word >> (g / kWarp) & 1u) == 0) out |= 1u << (first / kWarp);
      }
    }
    return out;
  }

  PAGODA_GPU void choose(const float* p, int32_t* chosen) const {
    uint32_t taken = shape.groups_chosen < shape.groups ? excluded(p) : 0;
    for (int64_t j = 0; j < shape.k; ++j) {
      const int32_t best =
          take_best(shape.num_experts, [&](int64_t e) { return merit(p, e); }, taken);
      if (lane_number() == 0) chosen[j] = best;
    }
    sync_warp();
  }

  PAGODA_GPU void operator()() const {
    const int64_t t = block_number() * kWarps + warp_number();
    if (t >= tokens) return;
    float* p = probs + t * shape.num_experts;
    int32_t* chosen = experts + t * shape.k;
    float* weight = weights + t * shape.k;
    const float* row = logits + t * shape.num_experts;
    shape.sigmoid ? sigmoids(row, p) : softmax(row, p);
    const bool skipped = replay ? chosen[0] < 0 : padding != nullptr && padding[t] != 0;
    if (!skipped && !replay) choose(p, chosen);
    const float sum = !skipped && shape.renormalise ? chosen_sum(shape, p, chosen) : 1.0f;
    for (int64_t j = lane_number(); j < shape.k; j += kWarp) {
      if (skipped) chosen[j] = -1;
      weight[j] = skipped ? 0.0f : p[chosen[j]] / sum * shape.scale;
    }
  }
};

// A token's sum of scores, for shares of it.
struct ScoreSums {
  static constexpr int kThreads = kWarps * kWarp, kSharedBytes = 0;
  const float* probs;
  int64_t tokens, num_experts;
  float* sums;
  PAGODA_GPU void operator()() const {
    const int64_t t = block_number() * kWarps + warp_number();
    if (t >= tokens) return;
    const float sum = score_sum(probs + t * num_experts, num_experts);
    if (lane_number() == 0) sums[t] = sum;
  }
};

// A block kRowBlock tokens: how often they choose each expert, and the sums of its probabilities.
struct RouteTotals {
  static constexpr int kThreads = 256, kSharedBytes = 0;
  const float* probs;
  const float* score_sums;  // nullptr: all are 1
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
        const float score = probs[t * num_experts + e];
        sum += static_cast<double>(score_sums != nullptr ? score / score_sums[t] : score);
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

// The logarithm of each token's sum of exponentials, and its square, 0 for padding.
struct LogSums {
  static constexpr int kThreads = kWarps * kWarp, kSharedBytes = 0;
  const float* logits;
  const uint8_t* padding;
  int64_t tokens, num_experts;
  float* log_sums;
  double* squares;
  PAGODA_GPU void operator()() const {
    const int64_t t = block_number() * kWarps + warp_number();
    if (t >= tokens) return;
    const float* row = logits + t * num_experts;
    float highest = -INFINITY, sum = 0.0f;
    for (int64_t e = lane_number(); e < num_experts; e += kWarp) highest = larger(row[e], highest);
    highest = join_warp(highest, Largest());
    for (int64_t e = lane_number(); e < num_experts; e += kWarp)
      sum += exponential(row[e] - highest);
    const float log_sum =
        highest + static_cast<float>(log(static_cast<double>(join_warp(sum, Sum()))));
    if (lane_number() != 0) return;
    const bool counts = padding == nullptr || padding[t] == 0;
    log_sums[t] = log_sum;
    squares[t] = counts ? static_cast<double>(log_sum) * static_cast<double>(log_sum) : 0.0;
  }
};

template <typename T>
struct RouteBackward {
  static constexpr int kThreads = kWarps * kWarp, kSharedBytes = 0;
  RouterShape shape;
  const float* probs;
  const int32_t* experts;
  const float *weights, *dweights, *aux_grad, *log_sums;
  float z_slope;
  int64_t tokens;
  T* dlogits;

  // The sum over experts of probs times the gradient of each.
  template <typename Gradient>
  PAGODA_GPU float inner(const float* p, const Gradient& gradient) const {
    float sum = 0.0f;
    for (int64_t e = lane_number(); e < shape.num_experts; e += kWarp) sum += p[e] * gradient(e);
    return join_warp(sum, Sum());
  }

  PAGODA_GPU void operator()() const {
    const int64_t t = block_number() * kWarps + warp_number();
    if (t >= tokens) return;
    const int64_t n = shape.num_experts, k = shape.k;
    const float* p = probs + t * n;
    const int32_t* chosen = experts + t * k;
    const float *weight = weights + t * k, *dweight = dweights + t * k;
    T* out = dlogits + t * n;
    if (chosen[0] < 0) {
      for (int64_t e = lane_number(); e < n; e += kWarp) out[e] = rounded<T>(0.0f);
      return;
    }
    float sum = 1.0f, mean = 0.0f;
    if (shape.renormalise) {
      sum = chosen_sum(shape, p, chosen);
      for (int64_t j = 0; j < k; ++j) mean += dweight[j] * weight[j];
    }
    const auto direct = [&](int64_t e) { return aux_grad != nullptr ? aux_grad[e] : 0.0f; };
    const float scores = shape.sigmoid ? score_sum(p, n) : 1.0f;
    const float share = shape.sigmoid ? inner(p, direct) / scores : 0.0f;
    const auto gradient = [&](int64_t e) {
      float dprob = shape.sigmoid ? (direct(e) - share) / scores : direct(e);
      for (int64_t j = 0; j < k; ++j) {
        if (chosen[j] == e) dprob += (dweight[j] * shape.scale - mean) / sum;
      }
      return dprob;
    };
    const float of_log_sum = log_sums != nullptr ? z_slope * log_sums[t] : 0.0f;
    const float all = shape.sigmoid ? 0.0f : inner(p, gradient) - of_log_sum;
    for (int64_t e = lane_number(); e < n; e += kWarp) {
      const float slope = shape.sigmoid ? p[e] * (1.0f - p[e]) : p[e];
      out[e] = rounded<T>(slope * (gradient(e) - all));
    }
  }
};

template <typename T>
struct MoveCorrection {
  const int32_t* load;
  int64_t total, experts;
  float speed;
  T* parts;
  PAGODA_GPU void operator()(int64_t e, int64_t) const {
    T *first = parts + e, *second = first + experts, *third = second + experts;
    float rest = widen(*first) + widen(*second) + widen(*third);
    const int64_t above = load[e] * experts - total;
    if (above < 0) rest = rest + speed;
    if (above > 0) rest = rest - speed;
    for (T* part : {first, second, third}) {
      const float upper = float_of(bits_of(rest) & 0xffff0000u);
      *part = rounded<T>(upper);
      rest -= upper;
    }
  }
};

}  // namespace

void CudaOps::move_correction(DType dt, const int32_t* load, int64_t total, int64_t experts,
                              float speed, void* parts, Stream& s) {
  CHECK(experts > 0);
  Queue queue(s, "move_correction");
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, experts, 1,
                     MoveCorrection<T>{load, total, experts, speed, typed<T>(parts)});
  });
}

void CudaOps::route(const RouterShape& shape, const float* logits, DType dt,
                    const void* correction, const uint8_t* padding, int64_t tokens, bool replay,
                    float* probs, int32_t* experts, float* weights, int32_t* counts,
                    double* prob_sums, Stream& s) {
  CHECK(tokens >= 0);
  shape.check();
  const int64_t n = shape.num_experts;
  CHECK(n <= kMostExperts, "%lld experts; the GPU's router chooses among at most %d",
        static_cast<long long>(n), kMostExperts);
  Queue queue(s, "route");
  with_type(dt, [&]<typename T>(T) {
    queue.launch(div_ceil(tokens, kWarps),
                 RouteTokens<T>{shape, logits, typed<T>(correction), padding, tokens, replay,
                                probs, experts, weights});
  });
  const int64_t blocks = div_ceil(tokens, kRowBlock);
  Temporary<int32_t> block_counts(queue, blocks * n);
  Temporary<double> block_sums(queue, blocks * n);
  Temporary<float> score_sums(queue, shape.sigmoid ? tokens : 0);
  if (shape.sigmoid) {
    queue.launch(div_ceil(tokens, kWarps), ScoreSums{probs, tokens, n, score_sums.get()});
  }
  queue.launch(blocks, RouteTotals{probs, shape.sigmoid ? score_sums.get() : nullptr, experts,
                                   tokens, n, shape.k, block_counts.get(), block_sums.get()});
  for_each_element(queue, 1, n, JoinTotals{block_counts.get(), block_sums.get(), blocks, n,
                                           counts, prob_sums});
}

void CudaOps::route_backward(DType dt, const RouterShape& shape, const float* probs,
                             const int32_t* experts, const float* weights, const float* dweights,
                             const float* aux_grad, const float* log_sums, float z_slope,
                             int64_t tokens, void* dlogits, Stream& s) {
  CHECK(tokens >= 0);
  CHECK(log_sums == nullptr || !shape.sigmoid);
  shape.check();
  Queue queue(s, "route_backward");
  with_type(dt, [&]<typename T>(T) {
    queue.launch(div_ceil(tokens, kWarps),
                 RouteBackward<T>{shape, probs, experts, weights, dweights, aux_grad, log_sums,
                                  z_slope, tokens, typed<T>(dlogits)});
  });
}

void CudaOps::log_sums(const float* logits, const uint8_t* padding, int64_t tokens,
                       int64_t num_experts, float* log_sums, double* square_sum, Stream& s) {
  CHECK(tokens >= 0 && num_experts > 0);
  Queue queue(s, "log_sums");
  Temporary<double> squares(queue, tokens);
  queue.launch(div_ceil(tokens, kWarps),
               LogSums{logits, padding, tokens, num_experts, log_sums, squares.get()});
  queue.launch(1, OrderedSum<false>{squares.get(), tokens, square_sum});
}

}  // namespace pagoda::PAGODA_MACHINE
