#include "train/batch.h"

#include <algorithm>

#include "base/stop_signal.h"

namespace pagoda {

Result<StepBatch> make_batch(const Dataset& dataset, uint64_t first_row, int64_t microbatches,
                             int64_t rows) {
  StepBatch batch;
  auto append = [](auto& all, const auto& some) {
    all.insert(all.end(), some.begin(), some.end());
  };
  for (int64_t b = 0; b < microbatches; ++b) {
    const uint64_t row = first_row + static_cast<uint64_t>(b * rows);
    ASSIGN_OR_RETURN(const Microbatch part, dataset.microbatch(row, rows));
    append(batch.tokens, part.tokens);
    append(batch.targets, part.targets);
    append(batch.positions, part.positions);
    append(batch.weights, part.weights);
    append(batch.padding, part.padding);
    batch.document_start.push_back(part.document_start);
    for (float weight : part.weights) batch.total_weight += weight;
  }
  return batch;
}

Result<LossSum> evaluate_rows(StepRunner& runner, const Dataset& dataset, int64_t batches,
                              int64_t microbatches, int64_t rows) {
  const int64_t counted = std::min(batches * rows, dataset.num_rows());
  LossSum total;
  for (int64_t row = 0; row < counted; row += microbatches * rows) {
    auto made = make_batch(dataset, static_cast<uint64_t>(row), microbatches, rows);
    const Status stopped = stop_status("evaluating");
    RETURN_IF_ERROR(runner.agree(stopped.ok() ? made.status() : stopped));
    StepBatch batch = made.take();
    // Rows beyond the counted ones only fill the pass: they become padding.
    const auto beyond = std::min<size_t>(
        batch.weights.size(), static_cast<size_t>((counted - row) * dataset.sequence_len()));
    for (size_t i = beyond; i < batch.weights.size(); ++i) {
      batch.total_weight -= batch.weights[i];
      batch.weights[i] = 0;
      batch.targets[i] = -1;
      batch.padding[i] = 1;
    }
    ASSIGN_OR_RETURN(const LossSum sum, runner.evaluate(batch));
    // One by one, as if each were a pass of its own.
    for (const double of_microbatch : sum.of_microbatches) total.loss += of_microbatch;
    for (const float weight : batch.weights) total.weight += weight;
  }
  if (total.weight > 0) return total;
  return Status(Exit::kBadData, "the held-out text has no token to predict: each of its documents "
                                "is a single token; give other text");
}

}  // namespace pagoda
