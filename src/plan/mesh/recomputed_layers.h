// Chooses the layers of a pipeline stage to compute again in the backward so that its activations
// fit. The first stages of 1F1B keep most microbatches and the last one keeps one (Piper, equation
// (5)). So recomputation that is chosen for each stage evens out their memory, and costs time only
// where memory is short. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/mesh/stage_memory.h"

namespace pagoda {

struct RecomputedLayers {
  std::vector<int64_t> layers;  // layers of the stage, 0 its first; ascending
  int64_t peak_bytes = 0;
};

// The fewest layers. Only their inputs are kept, for each microbatch in flight; while one of them
// is computed again, for one microbatch, it has all that it would have kept. The function takes the
// layers that save most, which makes their number the least; among equals the lower ones.
// kDoesNotFit when even all of them are not enough, kUsage for a negative size. O(l log l).
Result<RecomputedLayers> fewest_recomputed(const StageMemory& memory, int64_t device_bytes);

}  // namespace pagoda
