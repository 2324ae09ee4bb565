// A step's input from rows of a dataset.
#pragma once

#include "data/dataset.h"
#include "train/executor.h"

namespace pagoda {

// Microbatches of `rows` rows each, from sequence position `first_row` on.
Result<StepBatch> make_batch(const Dataset& dataset, uint64_t first_row, int64_t microbatches,
                             int64_t rows);

}  // namespace pagoda
