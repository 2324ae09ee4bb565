#include "train/generation.h"

#include <algorithm>

#include "base/stop_signal.h"

namespace pagoda {
namespace {

struct Sequence {
  TokenIds tokens;  // the prompt and what followed
  int64_t cached = 0;
  bool done = false;
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};

// Takes as many waiting tokens as a pass has room for, sequence by sequence. Appends to `last` the
// sequences whose newest token is in it.
GenerationPass next_pass(std::vector<Sequence>& sequences, const WorkspaceSize& size,
                         std::vector<size_t>& last) {
  GenerationPass pass;
  int64_t room = size.pass_tokens();
  const auto most_wanted = static_cast<size_t>(size.wanted_tokens());
  for (size_t i = 0; i < sequences.size() && room > 0 && last.size() < most_wanted; ++i) {
    Sequence& s = sequences[i];
    if (s.done) continue;
    for (; s.cached < s.size() && room > 0; ++s.cached, --room) {
      pass.tokens.push_back(static_cast<int32_t>(s.tokens[static_cast<size_t>(s.cached)]));
      pass.positions.push_back(static_cast<int32_t>(s.cached));
      pass.sequences.push_back(static_cast<int32_t>(i));
    }
    if (s.cached < s.size()) continue;
    pass.wanted.push_back(static_cast<int32_t>(pass.tokens.size()) - 1);
    last.push_back(i);
  }
  return pass;
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
  std::vector<Sequence> sequences;
  for (const TokenIds& prompt : prompts) {
    CHECK(!prompt.empty());
    sequences.push_back({prompt, 0, false});
  }
  std::vector<Continuation> continuations(prompts.size());
  for (;;) {
    std::vector<size_t> last;
    const GenerationPass pass = next_pass(sequences, runner.size(), last);
    if (pass.tokens.empty()) return continuations;
    RETURN_IF_ERROR(runner.agree(stop_status("generating")));
    RETURN_IF_ERROR(runner.run(pass));
    const auto choose = [&](size_t j, const std::vector<float>& logits) {
      return sample_token(logits, settings.sampling, last[j], continuations[last[j]].tokens.size());
    };
    ASSIGN_OR_RETURN(const std::vector<int32_t> next, runner.next_tokens(last.size(), choose));
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
