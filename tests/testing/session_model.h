// A model folder in a session with room for everything, to be looked into.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/testing/temp_dir.h"
#include "train/step_runner.h"
#include "train/weights.h"

namespace pagoda {

// AdamW with a weight decay of 0.1, on the CPU.
class SessionModel {
 public:
  SessionModel(const std::string& folder, DType dtype, int64_t microbatch_tokens,
               int64_t microbatches = 2, CacheSize cache = {}, RouterLosses losses = {},
               const std::vector<std::string>& freeze = {});

  StepRunner& runner() { return *runner_; }
  Session& session() { return *session_; }
  const TensorTable& table() { return session_->table(); }

  // A page's bytes, wherever they are.
  std::vector<std::byte> page(PageId id, int64_t bytes);

  // A tensor's values in one of its record's pages (gradient, or weights), as fp32.
  std::vector<float> tensor(int64_t t, PageId id);
  std::vector<float> gradient(int64_t t);

  // Logits of one microbatch: runs the layers and applies the head here.
  std::vector<float> logits(const StepBatch& batch, int64_t microbatch);

 private:
  TempDir dir_;
  HfFolder folder_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<StepRunner> runner_;
};

}  // namespace pagoda
