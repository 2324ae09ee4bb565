#include "train/generation.h"

#include <algorithm>

#include "base/stop_signal.h"

namespace pagoda {
namespace {

struct Sequence {
  TokenIds tokens;     // the prompt and what followed
  int64_t microbatch;  // of each pass, and which of its sequences this is
  int32_t place;
  int64_t cached = 0;
  bool done = false;
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};

// Takes as many of the microbatch's waiting tokens as there is room for, sequence by sequence.
// Appends to `last` the sequences whose newest token is in it. One that has none left is a token of
// padding, in the place of a sequence that has ended, or of none.
GenerationPart next_part(std::vector<Sequence>& sequences, int64_t microbatch,
                         const WorkspaceSize& size, std::vector<size_t>& last) {
  GenerationPart part;
  int64_t room = size.pass_tokens();
  const auto most_wanted = static_cast<size_t>(size.wanted_tokens());
  for (size_t i = 0; i < sequences.size() && room > 0 && part.wanted.size() < most_wanted; ++i) {
    Sequence& s = sequences[i];
    if (s.done || s.microbatch != microbatch) continue;
    for (; s.cached < s.size() && room > 0; ++s.cached, --room) {
      part.tokens.push_back(static_cast<int32_t>(s.tokens[static_cast<size_t>(s.cached)]));
      part.positions.push_back(static_cast<int32_t>(s.cached));
      part.sequences.push_back(s.place);
    }
    if (s.cached < s.size()) continue;
    part.wanted.push_back(static_cast<int32_t>(part.tokens.size()) - 1);
    last.push_back(i);
  }
  if (part.tokens.empty()) {
    part.tokens = part.positions = part.sequences = {0};
    part.padding = {1};
  }
  return part;
}

// The sequences of a pass; empty once all are done.
GenerationPass next_pass(std::vector<Sequence>& sequences, const WorkspaceSize& size,
                         std::vector<size_t>& last) {
  GenerationPass pass;
  if (std::all_of(sequences.begin(), sequences.end(), [](const Sequence& s) { return s.done; })) {
    return pass;
  }
  for (int64_t b = 0; b < size.pass_microbatches(); ++b) {
    pass.push_back(next_part(sequences, b, size, last));
  }
  return pass;
}

std::vector<Sequence> begin(const std::vector<TokenIds>& prompts, const PassRunner& runner) {
  std::vector<Sequence> sequences;
  std::vector<int32_t> places(static_cast<size_t>(runner.size().pass_microbatches()), 0);
  for (size_t i = 0; i < prompts.size(); ++i) {
    CHECK(!prompts[i].empty());
    const int64_t microbatch = runner.microbatch_of(i);
    sequences.push_back({prompts[i], microbatch, places[static_cast<size_t>(microbatch)]++});
  }
  return sequences;
}

Status stopped(const GenerationSettings& settings) {
  RETURN_IF_ERROR(stop_status("generating"));
  if (settings.stop == nullptr || !*settings.stop) return Status();
  return Status(Exit::kStopped, "stopped while generating");
}

bool contains(const TokenIds& tokens, uint32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

CacheSize cache_for(const std::vector<TokenIds>& prompts, int64_t max_new_tokens) {
  CacheSize size;
  size.sequences = static_cast<int64_t>(prompts.size());
  for (const TokenIds& prompt : prompts) {
    size.positions =
        std::max(size.positions, static_cast<int64_t>(prompt.size()) + max_new_tokens - 1);
  }
  return size;
}

Status check_lengths(const std::vector<TokenIds>& prompts, int64_t max_new_tokens,
                     const ModelConfig& config, const char* key) {
  const int64_t most = config.max_position_embeddings;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto tokens = static_cast<int64_t>(prompts[i].size());
    if (tokens + max_new_tokens <= most) continue;
    return Status(Exit::kBadData,
                  strf("prompt %zu has %lld tokens; with %lld new ones that is more than the %lld "
                       "that the model attends to; shorten it, or lower %s",
                       i + 1, (long long)tokens, (long long)max_new_tokens, (long long)most, key));
  }
  return Status();
}

Result<std::vector<Continuation>> generate(
    PassRunner& runner, const std::vector<TokenIds>& prompts, const GenerationSettings& settings,
    const std::function<void(size_t, uint32_t)>& on_token) {
  std::vector<Sequence> sequences = begin(prompts, runner);
  std::vector<Continuation> continuations(prompts.size());
  for (;;) {
    std::vector<size_t> last;
    const GenerationPass pass = next_pass(sequences, runner.size(), last);
    if (pass.empty()) return continuations;
    RETURN_IF_ERROR(runner.agree(stopped(settings)));
    RETURN_IF_ERROR(runner.run(pass));
    const auto choose = [&](size_t j, const std::vector<float>& logits) {
      return sample_token(logits, settings.sampling, last[j], continuations[last[j]].tokens.size());
    };
    ASSIGN_OR_RETURN(const std::vector<int32_t> next, runner.next_tokens(choose));
    for (size_t j = 0; j < last.size(); ++j) {
      const size_t i = last[j];
      Continuation& continuation = continuations[i];
      const int32_t token = next[j];
      if (token < 0) {
        return Status(Exit::kDiverged, "the model's logits are not numbers, so there is no next "
                                       "token; its weights are spoilt");
      }
      const auto id = static_cast<uint32_t>(token);
      continuation.ended = contains(settings.stop_tokens, id);
      if (!continuation.ended) {
        continuation.tokens.push_back(id);
        sequences[i].tokens.push_back(id);
        if (on_token) on_token(i, id);
      }
      const auto made = static_cast<int64_t>(continuation.tokens.size());
      sequences[i].done = continuation.ended || made == settings.max_new_tokens;
    }
  }
}

}  // namespace pagoda
