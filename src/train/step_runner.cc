#include "train/step_runner.h"

#include <algorithm>
#include <cmath>

#include "optim/clip.h"
#include "plan/pinning.h"

namespace pagoda {

StepRunner::StepRunner(Session* session, Ledger* ledger, double clip_norm)
    : session_(*session),
      ledger_(*ledger),
      clip_norm_(clip_norm),
      eager_(session->options().eager_adam),
      plan_(session->shape(), session->pages(),
            {.training = true,
             .state_on_device = session->memory().state_on_device,
             .eager_adam = eager_}),
      forward_plan_(session->shape(), session->pages(), {.training = false}),
      forecast_(*session) {}

int64_t StepRunner::records_of_layer(int64_t layer) const {
  return 1 + (session_.config().is_moe_layer(layer) ? session_.config().num_experts : 0);
}

// Issues tasks, which come now, before `later`, which come some time after.
void StepRunner::run(const TaskList& tasks, const TaskList& later) {
  std::vector<PageUse> uses;
  add_uses(tasks, uses);
  add_uses(later, uses);
  session_.pager().foresee(uses);
  issue(tasks);
}

// Issues tasks that are foreseen.
void StepRunner::issue(const TaskList& tasks) {
  for (const Task& task : tasks) {
    if (task.kind != TaskKind::kGradient) continue;
    touched_.push_back(task.record);
    if (eager_) ledger_.touch(task.record);
  }
  session_.executor().run(tasks, &ledger_, static_cast<uint64_t>(ledger_.updates()) + 1);
}

void StepRunner::pay(int64_t record, TaskList& tasks) {
  if (ledger_.owes(record)) plan_.adam(record, ledger_.has_gradient(record), tasks);
}

// Gradients that wait, and debts that have grown too old.
void StepRunner::pay_due(int64_t first_record, int64_t last_record, TaskList& tasks) {
  for (int64_t r = first_record; r < last_record; ++r) {
    const bool dense = session_.shape().records[r].expert < 0;
    if (dense || ledger_.has_gradient(r) || ledger_.due(r)) pay(r, tasks);
  }
}

Result<StepRunner::Forward> StepRunner::forward_layers(const StepPlan& plan,
                                                        const StepBatch& batch) {
  const RunShape& shape = session_.shape();
  Forward forward;
  forward.tokens_per_expert.resize(shape.num_layers);
  forward.fractions.assign(shape.microbatches * shape.num_experts, 0.0);
  std::vector<double> prob_means(forward.fractions.size(), 0.0);
  count_tokens(forward, batch);
  session_.pager().begin_cycle();
  session_.executor().begin_step(batch);
  TaskList tasks;
  pay_due(0, shape.layer_record[0] + records_of_layer(0), tasks);
  plan.embed(tasks);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    // Optimizer work runs a layer ahead of the computation.
    const int64_t next = shape.layer_record[l] + records_of_layer(l);
    const int64_t after =
        l + 1 < shape.num_layers ? next + records_of_layer(l + 1) : next + 1;
    pay_due(next, after, tasks);
    if (shape.is_moe[l]) forecast_.prefetch(plan, l, tasks);
    plan.forward_layer(l, tasks);
    TaskList later;  // optimizer work of the layers to come
    pay_due(after, static_cast<int64_t>(shape.records.size()), later);
    run(tasks, later);
    tasks.clear();
    RETURN_IF_ERROR(session_.pager().status());
    if (!shape.is_moe[l]) continue;
    add_routing(forward, prob_means, l);
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      if (forward.tokens_per_expert[l][e] > 0) pay(shape.expert(l, e), tasks);
    }
    plan.forward_experts(l, forward.tokens_per_expert[l], tasks);
  }
  run(tasks);
  finish_aux(forward, prob_means);
  return forward;
}

Result<StepRunner::Forward> StepRunner::forward(const StepPlan& plan, const StepBatch& batch,
                                                double learning_rate) {
  ASSIGN_OR_RETURN(Forward forward, forward_layers(plan, batch));
  // All older debts are paid; the first gradient of this step is the head's.
  if (eager_ && plan.options().training) ledger_.begin(learning_rate, 1.0f);
  TaskList tasks;
  plan.head(tasks);
  run(tasks);
  for (double sum : session_.executor().loss_sums()) forward.loss += sum;
  forward.loss /= std::max(batch.total_weight, 1e-30);
  RETURN_IF_ERROR(session_.pager().status());
  return forward;
}

Status StepRunner::evaluate_layers(const StepBatch& batch) {
  const auto forward = forward_layers(forward_plan_, batch);
  session_.executor().synchronize();
  return forward.status();
}

void StepRunner::count_tokens(Forward& forward, const StepBatch& batch) const {
  const int64_t microbatches = session_.shape().microbatches;
  const int64_t t = session_.shape().microbatch_tokens;
  const auto all = static_cast<double>(std::max<int64_t>(
      1, batch.unpadded_tokens(0, microbatches * t)));
  for (int64_t b = 0; b < microbatches; ++b) {
    const auto tokens = static_cast<double>(batch.unpadded_tokens(b * t, (b + 1) * t));
    forward.shares.push_back(tokens / all);
    forward.rows.push_back(
        std::max(1.0, tokens * static_cast<double>(session_.config().num_moe_layers())));
  }
}

// What the layer's routing chose: resolves the plan, and adds to the balance loss's means.
void StepRunner::add_routing(Forward& forward, std::vector<double>& prob_means, int64_t layer) {
  const RunShape& shape = session_.shape();
  std::vector<int32_t> counts;
  std::vector<double> prob_sums;
  session_.executor().read_routing(counts, prob_sums);
  std::vector<int64_t>& tokens = forward.tokens_per_expert[layer];
  tokens.assign(shape.num_experts, 0);
  for (size_t i = 0; i < counts.size(); ++i) {
    const double rows = forward.rows[i / shape.num_experts];
    tokens[i % shape.num_experts] += counts[i];
    forward.fractions[i] += counts[i] / rows;
    prob_means[i] += prob_sums[i] / rows;
  }
  session_.executor().set_routing(layer, tokens);
  forecast_.note(layer, tokens);
}

// Balance loss as Transformers' load_balancing_loss_func: E * sum_e f[e] P[e], f and P means over
// the tokens of all MoE layers without padding, per microbatch; microbatches weigh by their share
// of the step's tokens.
void StepRunner::finish_aux(Forward& forward, const std::vector<double>& prob_means) {
  const RunShape& shape = session_.shape();
  for (size_t i = 0; i < prob_means.size(); ++i) {
    forward.aux_loss += static_cast<double>(shape.num_experts) * forward.fractions[i] *
                        prob_means[i] * forward.shares[i / shape.num_experts];
  }
}

std::vector<float> StepRunner::aux_gradient(const Forward& forward) const {
  const RunShape& shape = session_.shape();
  const double scale = session_.config().router_aux_loss_coef *
                       static_cast<double>(shape.num_experts);
  std::vector<float> gradient;
  for (size_t i = 0; i < forward.fractions.size(); ++i) {
    const size_t b = i / shape.num_experts;
    gradient.push_back(static_cast<float>(scale * forward.shares[b] / forward.rows[b] *
                                          forward.fractions[i]));
  }
  return gradient;
}

// The routing is known, so the whole backward is. Its uses are kept, not its tasks, which are some
// times larger and made again layer by layer.
void StepRunner::foresee_backward(const Forward& forward) {
  std::vector<PageUse> uses;
  TaskList tasks;
  for (int64_t l = session_.shape().num_layers - 1; l >= 0; --l) {
    tasks.clear();
    plan_.backward_layer(l, forward.tokens_per_expert[l], tasks);
    add_uses(tasks, uses);
  }
  tasks.clear();
  plan_.embed_backward(tasks);
  add_uses(tasks, uses);
  session_.pager().foresee(uses);
}

Status StepRunner::backward(const Forward& forward) {
  const RunShape& shape = session_.shape();
  session_.executor().set_aux_gradient(aux_gradient(forward));
  foresee_backward(forward);
  for (int64_t l = shape.num_layers - 1; l >= 0; --l) {
    TaskList tasks;
    plan_.backward_layer(l, forward.tokens_per_expert[l], tasks);
    issue(tasks);
    RETURN_IF_ERROR(session_.pager().status());
  }
  TaskList tasks;
  plan_.embed_backward(tasks);
  issue(tasks);
  session_.executor().synchronize();
  return session_.pager().status();
}

StepResult StepRunner::finish(const Forward& forward, double learning_rate) {
  StepResult result;
  result.loss = forward.loss;
  result.aux_loss = forward.aux_loss;
  result.learning_rate = learning_rate;
  result.tokens_per_expert = forward.tokens_per_expert;
  session_.pager().keep(pinned_weights(session_.shape(), session_.pages(),
                                       session_.memory().classes, result.tokens_per_expert,
                                       session_.options().pinned_share));
  std::sort(touched_.begin(), touched_.end());
  double square_sum = 0;
  for (int64_t record : touched_) square_sum += session_.executor().square_sum(record);
  result.grad_norm = std::sqrt(square_sum);
  if (eager_) return result;
  result.skipped = !std::isfinite(result.grad_norm);
  if (!result.skipped) ledger_.begin(learning_rate, clip_factor(result.grad_norm, clip_norm_));
  for (int64_t record : touched_) {
    if (result.skipped) {
      session_.pager().discard(session_.pages().gradient(record));
    } else {
      ledger_.touch(record);
    }
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

Result<StepResult> StepRunner::train(const StepBatch& batch, double learning_rate) {
  CHECK(batch.total_weight > 0, "a step without anything to train");
  touched_.clear();
  const auto forward = this->forward(plan_, batch, learning_rate);
  const Status status = forward.ok() ? backward(forward.value()) : forward.status();
  if (!status.ok()) {
    session_.executor().synchronize();  // work that is queued still reads the batch
    return status;
  }
  RETURN_IF_ERROR(check_finite());
  StepResult result = finish(forward.value(), learning_rate);
  result.tokens = batch.unpadded_tokens(0, static_cast<int64_t>(batch.tokens.size()));
  result.total_weight = batch.total_weight;
  return result;
}

Result<LossSum> StepRunner::evaluate(const StepBatch& batch) {
  const auto forward = this->forward(forward_plan_, batch, 0);
  session_.executor().synchronize();
  if (!forward.ok()) return forward.status();
  return LossSum{forward.value().loss * batch.total_weight, batch.total_weight};
}

Status StepRunner::settle() {
  TaskList tasks;
  for (size_t r = 0; r < session_.shape().records.size(); ++r) {
    pay(static_cast<int64_t>(r), tasks);
  }
  run(tasks);
  session_.executor().synchronize();
  RETURN_IF_ERROR(session_.pager().status());
  return check_finite();
}

}  // namespace pagoda
