// One model's part of `pagoda generate`: what it is to continue, the session for that, and what
// came of it. One thread. With several ranks all of them make each call together.
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "commands/forward_run.h"
#include "train/generation.h"

namespace pagoda {

class GenerateRun {
 public:
  // None is owned.
  GenerateRun(const RunConfig& config, const GenerateFlags& flags, RankGroup& ranks)
      : config_(config), flags_(flags), run_(config, ranks) {}

  // Opens model.path, or a run's newest checkpoint, and makes tokens of the prompts. Errors as
  // ForwardRun::open(); kBadData and kUsage for prompts that the model cannot continue.
  Status open(const std::string& checkpoint);
  // REQUIRES of all that follows: open() has succeeded.
  const ForwardRun& forward() const { return run_; }
  const ModelConfig& model() const { return run_.model().folder->config(); }

  // Plans a session that only generates, no larger than the prompts need, within the budgets of
  // `options`, which are ForwardRun::options(). Says what it takes. Errors as Session::plan(), and
  // those of check_machine_memory() beside so many bytes of the process.
  Status plan(SessionOptions options, int64_t beside_bytes = 0);
  int64_t host_memory_bytes() const;  // REQUIRES: plan()

  // Generates. With `stream` prints the first prompt's text on the way. Once `stop` is true, if
  // there is one, it ends with kStopped. REQUIRES: plan().
  Status generate(bool stream, const std::atomic<bool>* stop = nullptr);

  // REQUIRES of what follows: generate() has succeeded.
  nlohmann::ordered_json json() const;
  void print() const;  // prompts with their texts
  int64_t new_tokens() const;
  std::string summary() const;  // for the log

 private:
  Status answer(Session& session, bool stream);
  Status add_moved(Session& session, const Pager::Counters& before);
  std::string text(size_t prompt) const;

  const RunConfig& config_;
  const GenerateFlags& flags_;
  ForwardRun run_;
  std::vector<TokenIds> prompts_;
  GenerationSettings settings_;
  SessionOptions options_;
  std::optional<MemoryPlan> memory_;
  std::vector<Continuation> continuations_;
  double seconds_ = 0;
  int64_t fetch_bytes_ = 0, upload_bytes_ = 0;  // of all ranks
};

// What a model writes may be any characters; a terminal is shown what they are.
void print_text(const std::string& text);

}  // namespace pagoda
