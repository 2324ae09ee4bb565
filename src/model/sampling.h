// Chooses the next token from logits. Pure: the same logits, settings and counters choose the same
// token.
#pragma once

#include <cstdint>
#include <span>

namespace pagoda {

struct SamplingSettings {
  double temperature = 0;  // 0: the most likely token
  double top_p = 1;        // in (0, 1]
  uint64_t seed = 0;
};

// With temperature 0 returns the token of the largest logit, the lowest id among equals. Otherwise
// draws from softmax(logits / temperature) over the fewest tokens whose probability reaches top_p,
// most likely first and the lowest id among equals (nucleus sampling, Holtzman et al. 2020). The
// random number is Philox's for (seed, sequence, position). Returns -1 when a logit is NaN or none
// is above -inf. logits (V)
int32_t sample_token(std::span<const float> logits, const SamplingSettings& settings,
                     uint64_t sequence, uint64_t position);

}  // namespace pagoda
