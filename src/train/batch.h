// A step's input from rows of a dataset.
#pragma once

#include "data/dataset.h"
#include "train/step_runner.h"

namespace pagoda {

// Microbatches of `rows` rows each, from sequence position `first_row` on.
Result<StepBatch> make_batch(const Dataset& dataset, uint64_t first_row, int64_t microbatches,
                             int64_t rows);

// Loss over the first `batches` microbatches of a dataset in order, or over all of its rows when
// there are fewer; no row counts twice. Passes of `microbatches` microbatches of `rows` rows each.
// kBadData when not one token has a target, so that a mean exists.
Result<LossSum> evaluate_rows(StepRunner& runner, const Dataset& dataset, int64_t batches,
                              int64_t microbatches, int64_t rows);

}  // namespace pagoda
