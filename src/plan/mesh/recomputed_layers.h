// Which layers of a pipeline stage to compute again in the backward so that its activations fit:
// the first stages of 1F1B keep most microbatches and the last keeps one (Piper, equation (5)), so
// that, chosen for each stage on its own, recomputation evens out what stages need and costs time
// only where memory is short. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/mesh/stage_memory.h"

namespace pagoda {

struct RecomputedLayers {
  std::vector<int64_t> layers;  // of the stage, 0 its first; ascending
  int64_t peak_bytes = 0;
};

// The fewest layers. Of those only their inputs are kept, for each microbatch in flight; while one
// of them is computed again, for one microbatch, it has all it would have kept. Taken are those
// with most to save, which makes their number the least; equal ones from below.
// kDoesNotFit when even all of them are not enough, kUsage for a negative size. O(l log l).
Result<RecomputedLayers> fewest_recomputed(const StageMemory& memory, int64_t device_bytes);

}  // namespace pagoda
