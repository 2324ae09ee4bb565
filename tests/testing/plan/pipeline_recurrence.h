// The recurrence of pipeline schedules, of which a plan's tasks know nothing: a stage does one
// thing at a time, a forward waits for the forward of the stage before, a backward for the backward
// of the stage after, and the last stage's for its forward. GPipe (Huang et al. 2019) takes all
// chunks forward before the first goes backward; in 1F1B (Narayanan et al. 2021) stage s of P is P
// - s chunks ahead at most. Sending takes no time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "plan/step/stages.h"

namespace pagoda {

// The time of a stage for a chunk.
struct StageSeconds {
  double forward_s = 0;
  double backward_s = 0;
};

// [stage] when it ends, in seconds. `parts`: [stage][chunk]. REQUIRES: kGpipe or
// kOneForwardOneBackward; equally many chunks. O(P^2 M).
inline std::vector<double> pipeline_ends_s(PipelineOrder order,
                                           const std::vector<std::vector<StageSeconds>>& parts) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const size_t count = parts.size(), all = parts.front().size();
  std::vector<std::vector<double>> forward(count, std::vector<double>(all, kNever));
  std::vector<std::vector<double>> backward = forward;
  std::vector<double> end_s(count, 0);
  std::vector<size_t> forwards(count, 0), backwards(count, 0);
  for (size_t done = 0; done < 2 * count * all;) {
    for (size_t s = 0; s < count; ++s) {
      const size_t ahead = order == PipelineOrder::kGpipe ? all : std::min(count - s, all);
      const size_t f = forwards[s], b = backwards[s];
      if (b == all) continue;
      const bool goes_forward = f < all && f < b + ahead;
      double ready_s = 0;
      if (goes_forward) {
        if (s > 0) ready_s = forward[s - 1][f];
      } else {
        ready_s = s + 1 < count ? backward[s + 1][b] : forward[s][b];
      }
      if (ready_s == kNever) continue;
      const double part_s = goes_forward ? parts[s][f].forward_s : parts[s][b].backward_s;
      end_s[s] = std::max(end_s[s], ready_s) + part_s;
      (goes_forward ? forward[s][f] : backward[s][b]) = end_s[s];
      ++(goes_forward ? forwards[s] : backwards[s]);
      ++done;
    }
  }
  return end_s;
}

// The same of chunks that are all alike.
inline std::vector<double> pipeline_ends_s(PipelineOrder order,
                                           std::span<const StageSeconds> stages, int64_t chunks) {
  std::vector<std::vector<StageSeconds>> parts;
  for (const StageSeconds& stage : stages) parts.emplace_back(static_cast<size_t>(chunks), stage);
  return pipeline_ends_s(order, parts);
}

}  // namespace pagoda
