#include "train/step_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "optim/clip.h"

namespace pagoda {

namespace {

PassPlanner planner_of(Session& session) {
  return PassPlanner(session.shape(), session.pages(), session.memory().classes,
                     session.memory().state_on_device, &session.copies());
}

}  // namespace

StepRunner::StepRunner(Session* session, Ledger* ledger, double clip_norm)
    : session_(*session), ledger_(*ledger), clip_norm_(clip_norm), passes_(planner_of(*session)) {}

StepRunner::Moment StepRunner::Moment::now() { return {monotonic_us(), process_cpu_us()}; }

PhaseTime StepRunner::between(const Moment& began, const Moment& ended) {
  return {1e-6 * static_cast<double>(ended.wall_us - began.wall_us),
          1e-6 * static_cast<double>(ended.cpu_us - began.cpu_us)};
}

void StepRunner::run(const StepPiece& piece) {
  foresee(piece, session_.pager());
  passes_.issue(piece, ledger_);
  session_.executor().run(piece, &ledger_, static_cast<uint64_t>(ledger_.updates()) + 1);
}

// Shares of the step's tokens, and room for what routing will choose.
StepRunner::Forward StepRunner::begin(const StepBatch& batch) {
  const RunShape& shape = session_.shape();
  const int64_t t = shape.microbatch_tokens;
  Forward forward;
  forward.began = Moment::now();
  forward.fractions.assign(shape.microbatches * experts(), 0.0);
  forward.prob_means = forward.fractions;
  const auto all = static_cast<double>(
      std::max<int64_t>(1, batch.unpadded_tokens(0, shape.microbatches * t)));
  const auto moe_layers = static_cast<double>(session_.config().num_moe_layers());
  forward.routed = std::max(1.0, all * moe_layers);
  for (int64_t b = 0; b < shape.microbatches; ++b) {
    const auto tokens = static_cast<double>(batch.unpadded_tokens(b * t, (b + 1) * t));
    forward.shares.push_back(tokens / all);
    forward.rows.push_back(std::max(1.0, tokens * moe_layers));
  }
  session_.executor().begin_step(batch);
  return forward;
}

// Waits for what a pass has issued, since queued work reads its batch. A rank that left it early
// keeps no other waiting.
Status StepRunner::end_pass(const Status& status) {
  if (!status.ok()) session_.ranks().give_up(status);
  session_.executor().synchronize();
  RETURN_IF_ERROR(status);
  return session_.transfers();
}

// Runs a pass; tells the schedule, the ledger and the executor what they learn of each other.
Status StepRunner::pass(PassExtent extent, double learning_rate, Forward& forward) {
  StepSchedule schedule = passes_.begin(extent, ledger_);
  for (StepPiece piece; schedule.next(piece);) {
    run(piece);
    RETURN_IF_ERROR(session_.transfers());
    switch (piece.wait) {
      case StepPiece::Wait::kGoOn:
        break;
      case StepPiece::Wait::kResolve: {
        ASSIGN_OR_RETURN(const LayerRouting routing, add_routing(piece, forward));
        schedule.resolve(routing);
        break;
      }
      case StepPiece::Wait::kLayersDone:
        passes_.layers_done(learning_rate, ledger_);
        break;
      case StepPiece::Wait::kForwardDone:
        prepare_backward(forward, schedule, piece.microbatches);
        forward.ended = Moment::now();
        break;
    }
  }
  forward.tokens_per_expert = schedule.tokens_per_expert();
  forward.routing = schedule.routing();
  return Status();
}

Status StepRunner::evaluate_layers(const StepBatch& batch) {
  Forward forward = begin(batch);
  return session_.ranks().agree(end_pass(pass(PassExtent::kLayers, 0, forward)));
}

// Returns the experts that the layer's routing chose, and adds to the balance loss's means.
Result<LayerRouting> StepRunner::add_routing(const StepPiece& piece, Forward& forward) {
  LayerRouting routing;
  for (int64_t b = piece.microbatches.first; b < piece.microbatches.end(); ++b) {
    ASSIGN_OR_RETURN(const Executor::Routed routed,
                     session_.executor().read_routing(piece.layer, b));
    routing.emplace_back(routed.counts.begin(), routed.counts.end());
    forward.z_loss += routed.log_squares / forward.routed;
    for (size_t e = 0; e < routed.counts.size(); ++e) {
      const size_t i = static_cast<size_t>(b) * routed.counts.size() + e;
      forward.fractions[i] += routed.counts[e] / forward.rows[b];
      forward.prob_means[i] += routed.prob_sums[e] / forward.rows[b];
    }
  }
  routing = routing_of_parts(routing, session_.shape().expert_parts);
  session_.executor().set_routing(piece.layer, piece.microbatches.first, routing);
  return routing;
}

// Waits for the forward if the backward takes all microbatches together, whatever the forward did.
void StepRunner::prepare_backward(const Forward& forward, const StepSchedule& schedule,
                                  Microbatches microbatches) {
  session_.executor().set_aux_gradient(aux_gradient(forward), microbatches);
  session_.executor().set_z_slope(
      static_cast<float>(2.0 * session_.options().losses.z / forward.routed));
  for (int64_t l = 0; l < session_.shape().num_layers; ++l) {
    if (!session_.shape().is_moe[l]) continue;
    LayerRouting routing = layer_routing(schedule.routing(), l, microbatches);
    session_.executor().set_routing(l, microbatches.first, routing);
    for (std::vector<int64_t>& counts : routing) {
      counts = tokens_of_experts(counts, session_.shape().expert_parts);
    }
    session_.executor().add_load(l, microbatches, routing);
  }
}

// Cross-entropy, and the balance loss as Transformers' load_balancing_loss_func: E * sum_e f[e]
// P[e], f and P means over the tokens of all MoE layers without padding, per microbatch;
// microbatches weigh by their share of the step's tokens.
void StepRunner::add_losses(const StepBatch& batch, const std::vector<double>& loss_sums,
                            Forward& forward) {
  for (double sum : loss_sums) forward.loss += sum;
  forward.loss /= std::max(batch.total_weight, 1e-30);
  for (size_t i = 0; i < forward.prob_means.size(); ++i) {
    forward.aux_loss += static_cast<double>(experts()) * forward.fractions[i] *
                        forward.prob_means[i] * forward.shares[i / experts()];
  }
}

std::vector<float> StepRunner::aux_gradient(const Forward& forward) const {
  const double of_model = session_.config().router_aux_loss_coef;
  const double scale =
      session_.options().losses.balance.value_or(of_model) * static_cast<double>(experts());
  std::vector<float> gradient;
  for (size_t i = 0; i < forward.fractions.size(); ++i) {
    const size_t b = i / static_cast<size_t>(experts());
    gradient.push_back(static_cast<float>(scale * forward.shares[b] / forward.rows[b] *
                                          forward.fractions[i]));
  }
  return gradient;
}

StepResult StepRunner::finish(Forward forward, const StepSums& sums, double learning_rate) {
  StepResult result;
  result.loss = forward.loss;
  result.aux_loss = forward.aux_loss;
  result.z_loss = forward.z_loss;
  result.learning_rate = learning_rate;
  result.tokens_per_expert = std::move(forward.tokens_per_expert);
  result.routing = std::move(forward.routing);
  passes_.end_step(result.tokens_per_expert);
  for (std::vector<int64_t>& tokens : result.tokens_per_expert) {
    tokens = tokens_of_experts(tokens, session_.shape().expert_parts);
  }
  double square_sum = 0;
  for (const double of_record : sums.square_sums) square_sum += of_record;
  result.grad_norm = std::sqrt(square_sum);
  if (session_.shape().eager_adam) return result;
  result.skipped = !std::isfinite(result.grad_norm);
  if (result.skipped) {
    for (const int64_t record : passes_.touched()) {
      if (!session_.shape().is_home(record)) continue;
      session_.pager().discard(session_.pages().gradient(record));
    }
  } else {
    passes_.update(learning_rate, clip_factor(result.grad_norm, clip_norm_), ledger_);
  }
  return result;
}

Status StepRunner::check_finite() const {
  if (session_.executor().weights_overflowed()) {
    return Status(
        Exit::kDiverged,
        "an update made a weight that is not finite; the last checkpoint is intact: train "
        "from it in a new run with a lower optim.learning_rate");
  }
  if (!session_.executor().saw_non_finite()) return Status();
  return Status(Exit::kDiverged,
                "a gradient became non-finite while updates run inside the backward; the last "
                "checkpoint is intact: export it, and train from that in a new run with a lower "
                "optim.learning_rate, or with optim.clip = \"global\", which skips such steps");
}

// Does the optimizer's work between passes. Waits.
Status StepRunner::optimize(const StepPiece& piece) {
  run(piece);
  Status status = end_pass(Status());
  if (status.ok()) status = check_finite();
  return session_.ranks().agree(status);
}

Result<StepResult> StepRunner::train(const StepBatch& batch, double learning_rate) {
  CHECK(batch.total_weight > 0, "a step without anything to train");
  Forward forward = begin(batch);
  Status status = end_pass(pass(PassExtent::kStep, learning_rate, forward));
  if (status.ok()) status = check_finite();
  std::vector<int64_t> touched = passes_.touched();
  std::sort(touched.begin(), touched.end());
  ASSIGN_OR_RETURN(const StepSums sums, gather_sums(session_, touched, status));
  add_losses(batch, sums.loss_sums, forward);
  const Moment began = forward.began, forward_ended = forward.ended;
  StepResult result = finish(std::move(forward), sums, learning_rate);
  result.tokens = batch.unpadded_tokens(0, static_cast<int64_t>(batch.tokens.size()));
  result.total_weight = batch.total_weight;
  const StepPiece rest = passes_.between_steps(ledger_);
  if (!rest.all_tasks().empty()) RETURN_IF_ERROR(optimize(rest));
  result.forward = between(began, forward_ended);
  result.backward = between(forward_ended, Moment::now());
  return result;
}

Result<LossSum> StepRunner::evaluate(const StepBatch& batch) {
  Forward forward = begin(batch);
  const Status status = end_pass(pass(PassExtent::kForward, 0, forward));
  ASSIGN_OR_RETURN(const StepSums sums, gather_sums(session_, {}, status));
  LossSum sum{0, batch.total_weight, sums.loss_sums, std::move(forward.routing)};
  for (const double of_microbatch : sums.loss_sums) sum.loss += of_microbatch;
  return sum;
}

Status StepRunner::drain() { return optimize(passes_.drain(ledger_)); }

Status StepRunner::settle(std::span<const int64_t> records) {
  return optimize(passes_.settle(records, ledger_));
}

void StepRunner::plan_again() { passes_ = planner_of(session_); }

}  // namespace pagoda
