#include "train/batch.h"

namespace pagoda {

Result<StepBatch> make_batch(const Dataset& dataset, uint64_t first_row, int64_t microbatches,
                             int64_t rows) {
  StepBatch batch;
  auto append = [](auto& all, const auto& some) { all.insert(all.end(), some.begin(), some.end()); };
  for (int64_t b = 0; b < microbatches; ++b) {
    const uint64_t row = first_row + static_cast<uint64_t>(b * rows);
    ASSIGN_OR_RETURN(const Microbatch part, dataset.microbatch(row, rows));
    append(batch.tokens, part.tokens);
    append(batch.targets, part.targets);
    append(batch.positions, part.positions);
    append(batch.weights, part.weights);
    batch.document_start.push_back(part.document_start);
    for (float weight : part.weights) batch.total_weight += weight;
  }
  return batch;
}

}  // namespace pagoda
