// The next token from logits. A pure function: the same logits, settings and counters choose the
// same token.
#pragma once

#include <cstdint>
#include <span>

namespace pagoda {

struct SamplingSettings {
  double temperature = 0;  // 0: the most likely token
  double top_p = 1;        // in (0, 1]
  uint64_t seed = 0;
};

// With temperature 0 the largest logit, ties to the lowest id. Else a draw from softmax(logits /
// temperature) over the fewest tokens, most likely first and ties by lowest id, whose probability
// reaches top_p (nucleus sampling, Holtzman et al. 2020); the draw is Philox's for (seed, sequence,
// position). -1 when a logit is NaN or none is above -inf.   logits (V)
int32_t sample_token(std::span<const float> logits, const SamplingSettings& settings,
                     uint64_t sequence, uint64_t position);

}  // namespace pagoda
