// The frequencies of rotary embedding (Su et al. 2021) for every backend, so that the GPU's angles
// are the CPU's.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace pagoda {

// theta^(-2i / rotated) for each pair i of a head's `rotated` numbers (rotated / 2).
inline std::vector<double> rope_frequencies(double theta, int64_t rotated) {
  std::vector<double> frequency;
  for (int64_t i = 0; i < rotated / 2; ++i) {
    frequency.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotated)));
  }
  return frequency;
}

}  // namespace pagoda
