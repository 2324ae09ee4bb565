#include "tests/testing/random_token_run.h"

#include <fstream>

#include "checkpoint/init_folder.h"
#include "train/weights.h"

namespace pagoda {

HfFolder make_random_model(const std::string& directory, const std::string& config_json) {
  std::ofstream(directory + "/config.json") << config_json;
  InitOptions init;
  init.config_path = directory + "/config.json";
  init.out_directory = directory + "/model";
  need(init_folder(init));
  return need(HfFolder::open(init.out_directory));
}

StepBatch random_batch(const StepSize& size, int64_t vocab_size, std::mt19937& random) {
  const auto vocabulary = static_cast<uint64_t>(vocab_size);
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

RandomTokenRun::RandomTokenRun(const HfFolder& folder, Storage* storage,
                               const SessionOptions& options)
    : session_(need(Session::create(folder.config(), options, storage))),
      ledger_(false, 0, std::vector<int64_t>(session_->table().records.size(), 0)),
      runner_(session_.get(), &ledger_, 1.0) {
  need(load_weights(*weights_of_folder(folder), *session_));
  need(session_->pager().flush());
}

RandomTokenRun::~RandomTokenRun() { session_->remove_files(); }

StepResult RandomTokenRun::step(const StepBatch& batch) {
  StepResult result = need(runner_.train(batch, 1e-4));
  CHECK(!result.skipped);
  return result;
}

}  // namespace pagoda
