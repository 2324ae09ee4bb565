#include "train/pass_runner.h"

#include <algorithm>
#include <cstring>

namespace pagoda {
namespace {

// Only scratch pages are written, and these need no versions.
constexpr uint64_t kGeneration = 1;

// Records stay at home, whoever attends.
RunShape shape_of_pass(const Session& session) {
  RunShape shape = session.shape();
  const int64_t microbatches = session.options().size.pass_microbatches();
  if (microbatches == shape.microbatches) return shape;
  shape.set_microbatches(microbatches);
  shape.records = session.shape().records;
  return shape;
}

}  // namespace

PassRunner::PassRunner(Session* session)
    : session_(*session),
      plan_(shape_of_pass(*session), session->pages(), {.training = false, .generating = true}),
      forecast_(session->shape(), session->pages(), session->memory().classes) {}

Result<LayerRouting> PassRunner::read_routing(int64_t layer, Microbatches microbatches) {
  LayerRouting routing;
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    ASSIGN_OR_RETURN(const Executor::Routed routed, session_.executor().read_routing(layer, b));
    routing.emplace_back(routed.counts.begin(), routed.counts.end());
  }
  return routing_of_parts(routing, session_.shape().expert_parts);
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
    ASSIGN_OR_RETURN(const LayerRouting routing, read_routing(piece.layer, piece.microbatches));
    executor.set_routing(piece.layer, piece.microbatches.first, routing);
    schedule.resolve(routing);
  }
  return Status();
}

Status PassRunner::run(const GenerationPass& pass) {
  wanted_.clear();
  for (size_t b = 0; b < pass.size(); ++b) {
    wanted_.insert(wanted_.end(), pass[b].wanted.size(), static_cast<int64_t>(b));
  }
  session_.executor().begin_pass(pass);
  Status status = run_tasks(!wanted_.empty());
  if (!status.ok()) session_.ranks().give_up(status);
  session_.executor().synchronize();  // queued work reads the pass
  if (status.ok()) status = session_.transfers();
  return session_.ranks().agree(status);
}

Result<std::vector<int32_t>> PassRunner::next_tokens(const Choose& choose) {
  const RunShape& shape = session_.shape();
  const auto rank_of = [&](int64_t b) {
    return shape.rank_of(shape.attending(shape.num_layers, b));
  };
  const Executor& executor = session_.executor();
  std::vector<int32_t> tokens(wanted_.size());
  std::vector<float> logits;
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (!executor.generates(wanted_[i])) continue;
    read_logits(static_cast<int64_t>(i), logits);
    tokens[i] = choose(i, logits);
  }
  if (session_.ranks().alone()) return tokens;
  const std::string own(reinterpret_cast<const char*>(tokens.data()),
                        tokens.size() * sizeof(int32_t));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, session_.ranks().agree(Status(), own));
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const int rank = rank_of(wanted_[i]);
    const std::string& chosen = all[static_cast<size_t>(rank)];
    if (chosen.size() != own.size()) {
      return Status(Exit::kIoError, strf("rank %d continues other prompts than this one; see that "
                                         "all ranks run the same program, and start again",
                                         rank));
    }
    std::memcpy(&tokens[i], chosen.data() + i * sizeof(int32_t), sizeof(int32_t));
  }
  return tokens;
}

void PassRunner::read_logits(int64_t i, std::vector<float>& logits) {
  const int64_t b = wanted_[static_cast<size_t>(i)];
  const auto first = std::find(wanted_.begin(), wanted_.end(), b) - wanted_.begin();
  session_.executor().read_logits(b, i - first, logits);
}

}  // namespace pagoda
