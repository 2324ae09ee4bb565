// A model in a session, trained on random tokens: for programs that measure steps.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "checkpoint/hf_folder.h"
#include "train/step_runner.h"

namespace pagoda {

// The value, or the end of the program with the error's text.
template <typename T>
T need(Result<T> result) {
  CHECK(result.ok(), "%s", result.status().message().c_str());
  return result.take();
}
inline void need(const Status& status) { CHECK(status.ok(), "%s", status.message().c_str()); }

// Writes config.json and a model of it with random weights below `directory`, and opens it.
HfFolder make_random_model(const std::string& directory, const std::string& config_json);

// Few tokens are frequent, so that experts' loads differ; one document a microbatch.
StepBatch random_batch(const StepSize& size, int64_t vocab_size, std::mt19937& random);

// Of pages that lie in no cache, on one core: seconds of a byte, in the fastest quarter of trials.
struct ByteCost {
  double copy_s = 0, check_s = 0;  // check: CRC32C
};
ByteCost measure_bytes(int64_t page_bytes);

class RandomTokenRun {
 public:
  // `storage` is not owned. All of the folder's weights are on disk when it returns.
  RandomTokenRun(const HfFolder& folder, Storage* storage, const SessionOptions& options);
  ~RandomTokenRun();  // removes the page file

  StepResult step(const StepBatch& batch);
  void settle() { need(runner_.settle()); }
  Session& session() { return *session_; }
  const Session& session() const { return *session_; }

 private:
  std::unique_ptr<Session> session_;
  Ledger ledger_;
  StepRunner runner_;
};

}  // namespace pagoda
