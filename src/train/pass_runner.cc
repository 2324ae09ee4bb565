#include "train/pass_runner.h"

namespace pagoda {
namespace {

// Scratch pages only are written; they do not live long enough to have versions.
constexpr uint64_t kGeneration = 1;

RunShape one_microbatch(RunShape shape) {
  shape.microbatches = 1;
  return shape;
}

}  // namespace

PassRunner::PassRunner(Session* session)
    : session_(*session),
      plan_(one_microbatch(session->shape()), session->pages(),
            {.training = false, .generating = true}),
      forecast_(*session) {}

std::vector<int64_t> PassRunner::read_routing() {
  std::vector<int32_t> counts;
  std::vector<double> prob_sums;
  session_.executor().read_routing(counts, prob_sums);
  return {counts.begin(), counts.begin() + session_.shape().num_experts};
}

void PassRunner::run_foreseen(const TaskList& tasks) {
  std::vector<PageUse> uses;
  add_uses(tasks, uses);
  session_.pager().foresee(uses);
  session_.executor().run(tasks, nullptr, kGeneration);
}

Status PassRunner::run_tasks(bool with_logits) {
  Executor& executor = session_.executor();
  TaskList tasks;
  plan_.embed(tasks);
  for (int64_t l = 0; l < session_.shape().num_layers; ++l) {
    const bool moe = session_.shape().is_moe[l];
    if (moe) forecast_.prefetch(plan_, l, tasks);
    plan_.forward_layer(l, tasks);
    run_foreseen(tasks);
    tasks.clear();
    RETURN_IF_ERROR(session_.pager().status());
    if (!moe) continue;
    const std::vector<int64_t> tokens_per_expert = read_routing();
    executor.set_routing(l, tokens_per_expert);
    forecast_.note(l, tokens_per_expert);
    plan_.forward_experts(l, tokens_per_expert, tasks);
  }
  if (with_logits) plan_.head(tasks);
  run_foreseen(tasks);
  return Status();
}

Status PassRunner::run(const GenerationPass& pass) {
  session_.pager().begin_cycle();
  session_.executor().begin_pass(pass);
  const Status status = run_tasks(!pass.wanted.empty());
  session_.executor().synchronize();  // queued work reads the pass
  RETURN_IF_ERROR(status);
  return session_.pager().status();
}

void PassRunner::read_logits(int64_t i, std::vector<float>& logits) {
  session_.executor().read_logits(i, logits);
}

}  // namespace pagoda
