#include "bench/random_batch.h"

namespace pagoda {

StepBatch random_batch(const Session& session, std::mt19937& random) {
  const WorkspaceSize& size = session.options().size;
  const auto vocabulary = static_cast<uint64_t>(session.config().vocab_size);
  StepBatch batch;
  for (int64_t i = 0; i < size.tokens(); ++i) {
    const uint64_t a = random() % vocabulary, b = random() % vocabulary;
    const auto token = static_cast<int32_t>(a * b / vocabulary);
    batch.tokens.push_back(token);
    batch.targets.push_back(token / 2);
    batch.positions.push_back(static_cast<int32_t>(i % size.microbatch_tokens));
    batch.weights.push_back(1);
  }
  batch.document_start.assign(static_cast<size_t>(size.microbatches),
                              {0, static_cast<int32_t>(size.microbatch_tokens)});
  batch.total_weight = static_cast<double>(size.tokens());
  return batch;
}

}  // namespace pagoda
