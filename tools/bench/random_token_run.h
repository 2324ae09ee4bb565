// A model in a session, trained on random tokens: for programs that measure steps.
#pragma once

#include <memory>
#include <string>

#include "bench/random_batch.h"
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

// A model in Qwen3-MoE's form, every layer with experts.
struct RandomModel {
  int64_t layers = 0, hidden_size = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t experts = 0, experts_per_token = 0, expert_size = 0, vocab_size = 0;
  double initializer_range = 0.02;
};

// Writes config.json and a model of it with random weights below `directory`, and opens it.
HfFolder make_random_model(const std::string& directory, const RandomModel& model);

// Training in bf16 with AdamW below `directory`: budgets with room for everything, one version of
// each page. eager: updates inside the backward.
SessionOptions roomy_options(const std::string& directory, const std::string& file_name,
                             int64_t microbatches, int64_t microbatch_tokens, bool eager);

// Seconds a byte, on one core, for pages that lie in no cache, in the fastest quarter of trials.
// Copies are those of streams.
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
  void drain() { need(runner_.drain()); }
  Session& session() { return *session_; }
  const Session& session() const { return *session_; }

 private:
  std::unique_ptr<Session> session_;
  Ledger ledger_;
  StepRunner runner_;
};

}  // namespace pagoda
