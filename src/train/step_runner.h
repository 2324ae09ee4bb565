// Runs one step, from a batch to a report: hands the pieces of the plan to the executor as routing
// becomes known, and keeps the optimizer's ledger.
//
// Deferred updates (clip = global): gradients wait as pages until the norm over all of them is
// known at the end of the step; each record's Adam runs in the next forward, one layer ahead of its
// use. A non-finite norm skips the step before any update. Eager updates (clip = per_expert, none):
// Adam runs inside the backward; a non-finite gradient is an error.
//
// With several ranks each has a runner, a session and a ledger, and all of them make every call
// together, with the same batch. Their results are alike, errors too: a rank that meets one leaves
// the pass and gives up its transfers, so that the others leave it as well, and all return the
// error of the lowest rank that met one itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/pass_planner.h"
#include "train/session.h"
#include "train/step_sums.h"

namespace pagoda {

// How long a part of a step took: by the clock, and on all processors together.
struct PhaseTime {
  double wall_s = 0, cpu_s = 0;
};

struct StepResult {
  double loss = 0;       // cross-entropy, mean over the step's loss weight
  double aux_loss = 0;   // balance loss before its coefficient, mean over the tokens' microbatches
  double z_loss = 0;  // before its coefficient, mean over tokens and MoE layers; 0: there is none
  double grad_norm = 0;  // norm of all gradients, before clipping
  double learning_rate = 0;
  int64_t tokens = 0;       // the step's tokens without padding
  double total_weight = 0;  // loss weight of the step: how many tokens were trained
  bool skipped = false;  // non-finite gradient: no update was made
  std::vector<std::vector<int64_t>> tokens_per_expert;  // [layer][E]; empty for dense layers
  // The same by microbatch, and of parts where experts have them (RunShape::expert_parts), so that
  // DryRun can repeat the step.
  Routing routing;
  // The forward, which includes updates that were put off to it, and the rest of the step.
  PhaseTime forward, backward;
};

struct LossSum {
  double loss = 0;    // sum over targets
  double weight = 0;
  // For one batch; empty in a sum over several.
  std::vector<double> of_microbatches;  // (M) sums over targets
  Routing routing;
};

class StepRunner {
 public:
  // `session` and `ledger` are not owned. clip_norm: the norm that deferred updates clip to.
  StepRunner(Session* session, Ledger* ledger, double clip_norm);

  // Runs a training step. kDiverged after a non-finite gradient in eager mode, or once an update
  // has made a weight that is not finite; or any transfer's error. No work uses `batch` when
  // train() or evaluate() returns, with an error or without. REQUIRES: batch.total_weight > 0
  // (every row of a Dataset has something to train); single microbatches may have no weight.
  Result<StepResult> train(const StepBatch& batch, double learning_rate);
  // Runs the forward only. REQUIRES: drain() since the last train().
  Result<LossSum> evaluate(const StepBatch& batch);
  // Runs the forward without the head, for looking inside: until the next step
  // layer_input(num_layers, b) holds the input that the head would read. Waits.
  Status evaluate_layers(const StepBatch& batch);
  // Applies every pending update, so that weights and state are those of the newest update. Waits.
  // kDiverged if a weight is not finite.
  Status drain();
  // Applies the pending updates of these experts that have a gradient. Waits. Errors as of drain().
  Status settle(std::span<const int64_t> records);
  // Makes its plans anew, for other homes (Session::exchange_homes()).
  void plan_again();
  // RankGroup::agree() of the session's ranks, for what happens between passes.
  Status agree(const Status& mine) { return session_.ranks().agree(mine); }

 private:
  struct Moment {
    int64_t wall_us = 0, cpu_us = 0;
    static Moment now();
  };
  struct Forward {
    Moment began, ended;
    double loss = 0;
    double aux_loss = 0;
    double z_loss = 0;
    double routed = 1;              // the step's tokens without padding times MoE layers
    std::vector<double> shares;     // (M) share of the step's tokens without padding
    std::vector<double> rows;       // (M) tokens times MoE layers, at least 1
    std::vector<double> fractions;  // (M, E) chosen share of each expert over all MoE layers
    std::vector<double> prob_means;  // (M, E) mean probability of each expert over all MoE layers
    std::vector<std::vector<int64_t>> tokens_per_expert;  // [layer][E]
    Routing routing;
  };
  Forward begin(const StepBatch& batch);
  Status pass(PassExtent extent, double learning_rate, Forward& forward);
  Status end_pass(const Status& status);
  Result<LayerRouting> add_routing(const StepPiece& piece, Forward& forward);
  void prepare_backward(const Forward& forward, const StepSchedule& schedule,
                        Microbatches microbatches);
  void add_losses(const StepBatch& batch, const std::vector<double>& loss_sums, Forward& forward);
  std::vector<float> aux_gradient(const Forward& forward) const;
  // Whole ones of a layer; 0 if no layer has any, whatever the configuration says.
  int64_t experts() const { return session_.shape().num_experts / session_.shape().expert_parts; }
  Status check_finite() const;
  static PhaseTime between(const Moment& began, const Moment& ended);
  StepResult finish(Forward forward, const StepSums& sums, double learning_rate);
  Status optimize(const StepPiece& piece);
  void run(const StepPiece& piece);

  Session& session_;
  Ledger& ledger_;
  double clip_norm_;
  PassPlanner passes_;
};

}  // namespace pagoda
