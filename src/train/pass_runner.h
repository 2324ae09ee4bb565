// One pass of generation through a session: new tokens of some sequences in, logits out. The same
// plan, residency and executor as a training step's forward: expert by expert over all tokens of
// the pass, experts paged. What a token's logits are depends on its sequence alone, not on what
// passes with it, nor on any budget.
//
// The cache of keys and values is part of the session's workspace (StepSize::cache). A training
// session has it in bytes that its steps use too: a sequence ends where a step begins.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/step/step_schedule.h"
#include "train/session.h"

namespace pagoda {

class PassRunner {
 public:
  // `session` is not owned. Its weights must be those of the newest update (StepRunner::drain)
  // whenever run() is called.
  explicit PassRunner(Session* session);

  // Waits for the pass. Any transfer's error.
  Status run(const GenerationPass& pass);
  // Of the newest pass's i-th wanted token. (V)
  void read_logits(int64_t i, std::vector<float>& logits);

  const StepSize& size() const { return session_.options().size; }

 private:
  Status run_tasks(bool with_logits);
  LayerRouting read_routing();

  Session& session_;
  StepPlan plan_;
  ExpertForecast forecast_;
};

}  // namespace pagoda
