// Makes a step's input from rows of a dataset.
#pragma once

#include "data/dataset.h"
#include "train/step_runner.h"

namespace pagoda {

// Makes microbatches of `rows` rows each, from sequence position `first_row` on.
Result<StepBatch> make_batch(const Dataset& dataset, uint64_t first_row, int64_t microbatches,
                             int64_t rows);

// The loss over the first `batches` microbatches of a dataset in order, or over all of its rows
// when there are fewer; no row counts twice. A pass has `microbatches` microbatches of `rows` rows
// each, and no bit of the loss depends on how many. kBadData when no token has a target, since then
// there is no mean.
Result<LossSum> evaluate_rows(StepRunner& runner, const Dataset& dataset, int64_t batches,
                              int64_t microbatches, int64_t rows);

}  // namespace pagoda
