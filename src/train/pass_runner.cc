#include "train/pass_runner.h"

namespace pagoda {
namespace {

// Only scratch pages are written, and these need no versions.
constexpr uint64_t kGeneration = 1;

RunShape one_microbatch(RunShape shape) {
  shape.set_microbatches(1);
  return shape;
}

}  // namespace

PassRunner::PassRunner(Session* session)
    : session_(*session),
      plan_(one_microbatch(session->shape()), session->pages(),
            {.training = false, .generating = true}),
      forecast_(session->shape(), session->pages(), session->memory().classes) {}

LayerRouting PassRunner::read_routing() {
  const std::span<const int32_t> counts = session_.executor().read_routing(0).counts;
  return {{counts.begin(), counts.end()}};
}

Status PassRunner::run_tasks(bool with_logits) {
  Executor& executor = session_.executor();
  StepSchedule schedule(&plan_, nullptr, &forecast_,
                        with_logits ? PassExtent::kForward : PassExtent::kLayers);
  for (StepPiece piece; schedule.next(piece);) {
    foresee(piece, session_.pager());
    executor.run(piece.tasks, nullptr, kGeneration);
    RETURN_IF_ERROR(session_.pager().status());
    if (piece.wait != StepPiece::Wait::kResolve) continue;
    const LayerRouting routing = read_routing();
    executor.set_routing(piece.layer, piece.microbatches.first, routing);
    schedule.resolve(routing);
  }
  return Status();
}

Status PassRunner::run(const GenerationPass& pass) {
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
