#include "model/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"

namespace pagoda {
namespace {

// The token of the largest logit, the lowest id among equals; -1 when a logit is NaN or none is
// above -inf.
int32_t most_likely(std::span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  int32_t token = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return -1;
    if (logits[i] <= best) continue;
    best = logits[i];
    token = static_cast<int32_t>(i);
  }
  return token;
}

struct Candidate {
  double probability;  // unnormalised
  int32_t token;
  bool operator<(const Candidate& other) const {
    if (probability != other.probability) return probability < other.probability;
    return token > other.token;
  }
};

}  // namespace

int32_t sample_token(std::span<const float> logits, const SamplingSettings& settings,
                     uint64_t sequence, uint64_t position) {
  CHECK(settings.temperature >= 0 && settings.top_p > 0 && settings.top_p <= 1);
  const int32_t best = most_likely(logits);
  if (settings.temperature == 0 || best < 0 || std::isinf(logits[best])) return best;
  std::vector<Candidate> rest;
  rest.reserve(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double difference = double{logits[i]} - logits[best];
    rest.push_back({std::exp(difference / settings.temperature), static_cast<int32_t>(i)});
    total += rest.back().probability;
  }
  // A heap, because few tokens make up most of the mass.
  std::make_heap(rest.begin(), rest.end());
  std::vector<Candidate> kept;
  double mass = 0;
  while (!rest.empty() && (kept.empty() || mass < settings.top_p * total)) {
    std::pop_heap(rest.begin(), rest.end());
    kept.push_back(rest.back());
    mass += rest.back().probability;
    rest.pop_back();
  }
  double left = random_unit(settings.seed, RandomPurpose::kSample, sequence, position) * mass;
  for (const Candidate& candidate : kept) {
    left -= candidate.probability;
    if (left <= 0) return candidate.token;
  }
  return kept.back().token;  // what rounding left over
}

}  // namespace pagoda
