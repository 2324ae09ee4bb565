// A run in fewer and larger pieces, for planning in a second what has tens of thousands of experts:
// neighbouring experts of a layer, whose pages are equal and are used one behind the other, become
// one of as many bytes; so do neighbouring microbatches, and the blocks of an expert's rows. Small
// runs stay as they are, and are planned exactly. Pure.
//
// What coarse pieces change: the least memory of a step, which is that of its largest task, is
// larger; plans lend a coarse run the difference (plan/forecast/step_forecast.h). Transfers begin
// to overlap with work, and end, by larger pieces.
#pragma once

#include <cstdint>

#include "plan/machine/task_costs.h"
#include "plan/step/run_shape.h"

namespace pagoda {

struct CoarseLimits {
  int64_t expert_records = 0;  // of all layers
  int64_t microbatches = 0;
  int64_t blocks = 0;          // of all experts of a step
  bool quick = false;          // memory is divided with less care (plan/memory/host_division.h)
};

// For one answer in seconds, for many that are compared with each other, and for a search of
// dozens.
inline constexpr CoarseLimits kFinePlan{1024, 16, 8192, false}, kCoarsePlan{512, 8, 1024, true},
    kSearchPlan{256, 4, 512, true};

// {1, 1, 1} where the run is within the limits already. Experts of a layer divide by its `experts`,
// microbatches by its `microbatches`. Experts are still at least four a layer, and more than a
// token's choices where they were.
// in_order: blocks become no longer than a microbatch's rows, so that what takes them apart by
// microbatches does so in the run's order; microbatches are at most kMostInOrder.
inline constexpr int64_t kMostInOrder = 8;
Coarseness coarseness(const RunShape& shape, const CoarseLimits& limits, bool in_order = false);

// REQUIRES: coarseness(shape, any limits).
RunShape coarse_shape(const RunShape& shape, const Coarseness& coarseness);

// Every kind of layer that the run has, at most twice each, and at most two microbatches: a step of
// it needs at least as much memory as one of the run.
RunShape brief_shape(const RunShape& shape);

}  // namespace pagoda
