// The frequencies of rotary embedding (Su et al. 2021) for every backend, so that the GPU's angles
// are the CPU's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace pagoda {

// How heads are rotated. With a factor above 0 frequencies that turn less than slow_turns times
// over original_positions are divided by the factor, those that turn more than fast_turns times
// stay, and between them both are mixed: by YaRN (Peng et al. 2023) in equal parts from pair to
// pair, by Llama 3.1's rule (by_turns) in parts that follow the turns.
struct Rotation {
  double theta = 1e4;
  double factor = 0.0;
  double original_positions = 0.0, fast_turns = 32.0, slow_turns = 1.0;
  bool whole_pairs = true;  // the mix begins and ends at whole pairs
  bool by_turns = false;
  double size = 1.0;        // rotated numbers are multiplied by it
};

// theta^(-2i / rotated) for each pair i of a head's `rotated` numbers (rotated / 2), changed as
// Transformers 5.23 changes it (modeling_rope_utils.py).
inline std::vector<double> rope_frequencies(const Rotation& r, int64_t rotated) {
  const auto pairs = static_cast<double>(rotated);
  const auto pair_of = [&](double turns) {
    return pairs * std::log(r.original_positions / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(r.theta));
  };
  double low = 0.0, high = 0.0;
  if (r.factor > 0.0) {
    low = pair_of(r.fast_turns);
    high = pair_of(r.slow_turns);
    if (r.whole_pairs) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, pairs - 1.0);
    if (low == high) high += 0.001;
  }
  std::vector<double> frequency;
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const auto pair = static_cast<double>(i);
    const double plain = std::pow(r.theta, -2.0 * pair / pairs);
    if (r.factor == 0.0) {
      frequency.push_back(plain);
      continue;
    }
    const double turns = r.original_positions * plain / (2.0 * std::numbers::pi);
    const double part = r.by_turns ? (r.fast_turns - turns) / (r.fast_turns - r.slow_turns)
                                   : (pair - low) / (high - low);
    const double divided = std::clamp(part, 0.0, 1.0);
    frequency.push_back(plain / r.factor * divided + plain * (1.0 - divided));
  }
  return frequency;
}

}  // namespace pagoda
