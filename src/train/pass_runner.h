// Runs passes of generation through a session: new tokens of some sequences in, logits out. A pass
// uses the same plan, residency and executor as a training step's forward: expert by expert over
// all tokens of the pass, with paged experts. A token's logits depend on its sequence alone, not on
// the other tokens of the pass, nor on any budget, nor on who computes them.
//
// In a session that trains nothing each device that attends has a microbatch of the pass: tokens of
// its own sequences, whose keys and values stay with it (RunSetup::deal_sequences()).
//
// The cache of keys and values is part of the session's workspace (WorkspaceSize::cache). In a
// training session it shares its bytes with the steps, so no sequence outlives the start of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/step/step_schedule.h"
#include "train/session.h"

namespace pagoda {

class PassRunner {
 public:
  // `session` is not owned. Its weights must be those of the newest update (StepRunner::drain)
  // whenever run() is called.
  explicit PassRunner(Session* session);

  // Runs a pass and waits for it. Returns the error of any transfer.
  Status run(const GenerationPass& pass);
  // Chooses the next token for each of the newest pass's wanted ones, microbatch by microbatch, by
  // their logits, where these are; all ranks return the same.
  using Choose = std::function<int32_t(size_t wanted, const std::vector<float>& logits)>;
  Result<std::vector<int32_t>> next_tokens(const Choose& choose);
  // Reads the logits of the newest pass's i-th wanted token. (V) REQUIRES: they are on this rank.
  void read_logits(int64_t i, std::vector<float>& logits);

  // RankGroup::agree() of the session's ranks, for what happens between passes.
  Status agree(const Status& mine) { return session_.ranks().agree(mine); }

  const WorkspaceSize& size() const { return session_.options().size; }
  // The microbatch of a pass that a sequence goes with.
  int64_t microbatch_of(size_t sequence) const {
    const std::vector<int>& of_sequence = session_.options().sequence_microbatch;
    return of_sequence.empty() ? 0 : of_sequence[sequence];
  }

 private:
  Status run_tasks(bool with_logits);
  Result<LayerRouting> read_routing(int64_t layer, Microbatches microbatches);

  Session& session_;
  StepPlan plan_;
  ExpertForecast forecast_;
  std::vector<int64_t> wanted_;  // [wanted token of the newest pass] its microbatch
};

}  // namespace pagoda
