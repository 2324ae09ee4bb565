#include "train/pass_runner.h"

#include <cstring>

namespace pagoda {
namespace {

// Only scratch pages are written, and these need no versions.
constexpr uint64_t kGeneration = 1;

// Records stay at home, whoever attends.
RunShape one_microbatch(const RunShape& shape) {
  RunShape one = shape;
  one.set_microbatches(1);
  one.records = shape.records;
  return one;
}

}  // namespace

PassRunner::PassRunner(Session* session)
    : session_(*session),
      plan_(one_microbatch(session->shape()), session->pages(),
            {.training = false, .generating = true}),
      forecast_(session->shape(), session->pages(), session->memory().classes) {}

Result<LayerRouting> PassRunner::read_routing(int64_t layer) {
  ASSIGN_OR_RETURN(const Executor::Routed routed, session_.executor().read_routing(layer, 0));
  return LayerRouting{{routed.counts.begin(), routed.counts.end()}};
}

Status PassRunner::run_tasks(bool with_logits) {
  Executor& executor = session_.executor();
  StepSchedule schedule(&plan_, nullptr, &forecast_,
                        with_logits ? PassExtent::kForward : PassExtent::kLayers,
                        &session_.copies());
  for (StepPiece piece; schedule.next(piece);) {
    foresee(piece, session_.pager());
    executor.run(piece, nullptr, kGeneration);
    session_.copies().account(piece.all_tasks());
    RETURN_IF_ERROR(session_.transfers());
    if (piece.wait != StepPiece::Wait::kResolve) continue;
    ASSIGN_OR_RETURN(const LayerRouting routing, read_routing(piece.layer));
    executor.set_routing(piece.layer, piece.microbatches.first, routing);
    schedule.resolve(routing);
  }
  return Status();
}

Status PassRunner::run(const GenerationPass& pass) {
  session_.executor().begin_pass(pass);
  Status status = run_tasks(!pass.wanted.empty());
  if (!status.ok()) session_.ranks().give_up(status);
  session_.executor().synchronize();  // queued work reads the pass
  if (status.ok()) status = session_.transfers();
  return session_.ranks().agree(status);
}

Result<std::vector<int32_t>> PassRunner::next_tokens(size_t count, const Choose& choose) {
  std::vector<int32_t> tokens(count);
  Executor& executor = session_.executor();
  std::vector<float> logits;
  for (size_t i = 0; i < count && executor.generates(); ++i) {
    executor.read_logits(static_cast<int64_t>(i), logits);
    tokens[i] = choose(i, logits);
  }
  if (session_.ranks().alone()) return tokens;
  const std::string own(reinterpret_cast<const char*>(tokens.data()), count * sizeof(int32_t));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, session_.ranks().agree(Status(), own));
  const RunShape& shape = session_.shape();
  const int rank = shape.rank_of(shape.attending(shape.num_layers, 0));
  const std::string& chosen = all[static_cast<size_t>(rank)];
  if (chosen.size() != own.size()) {
    return Status(Exit::kIoError, strf("rank %d continues other prompts than this one; see that "
                                       "all ranks run the same program, and start again", rank));
  }
  std::memcpy(tokens.data(), chosen.data(), chosen.size());
  return tokens;
}

void PassRunner::read_logits(int64_t i, std::vector<float>& logits) {
  session_.executor().read_logits(i, logits);
}

}  // namespace pagoda
