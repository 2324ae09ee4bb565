// Turns a run into one of fewer and larger pieces, so that a model of tens of thousands of experts
// is planned in a second. Experts of a layer that follow one another at one home, in copies also at
// the same seats, and whose pages are equal, become one expert of as many bytes; so do neighbouring
// microbatches of a shard, and the blocks of an expert's rows. Small runs stay as they are, and are
// planned exactly. Pure.
//
// Coarse pieces change two things. The least memory of a step, which is that of its largest task,
// is larger; plans lend a coarse run the difference (plan/forecast/step_forecast.h). And transfers
// overlap with work in larger pieces.
#pragma once

#include <cstdint>

#include "plan/machine/task_costs.h"
#include "plan/step/run_shape.h"

namespace pagoda {

struct CoarseLimits {
  int64_t expert_records = 0;  // experts of all layers
  int64_t microbatches = 0;
  int64_t blocks = 0;          // row blocks of all experts of a step
  bool quick = false;          // memory is divided with less care (plan/memory/host_division.h)
};

// Limits for one answer in seconds, for several answers that are compared, and for a search of
// dozens.
inline constexpr CoarseLimits kFinePlan{1024, 16, 8192, false}, kCoarsePlan{512, 8, 1024, true},
    kSearchPlan{256, 4, 512, true};

// {1, 1, 1} where the run is within the limits already. Its `experts` divides the experts of a
// layer that have the same home and seats, its `microbatches` the microbatches, its `blocks` are of
// one cell of an expert's sums. At least four experts a layer are left, and one on each device.
// in_order: blocks become no longer than a microbatch's rows, so that code which splits them by
// microbatches keeps the run's order; there are at most kMostInOrder microbatches.
inline constexpr int64_t kMostInOrder = 8;
Coarseness coarseness(const RunShape& shape, const CoarseLimits& limits, bool in_order = false);

// REQUIRES: coarseness(shape, any limits).
RunShape coarse_shape(const RunShape& shape, const Coarseness& coarseness);

// The run cut down to about two layers of each kind in each stage, and at most two microbatches, or
// with several devices as many as the sums of two chunks divide, twice as many for a rank that has
// one of these alone. A step of it needs as much memory as one of the run. Stages that take chunk
// by chunk have all their layers, whose sums wait side by side.
RunShape brief_shape(const RunShape& shape);

}  // namespace pagoda
