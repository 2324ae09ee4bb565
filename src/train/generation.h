// Continues prompts, all together, so that an expert that several of them want is read once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/sampling.h"
#include "train/pass_runner.h"

namespace pagoda {

using TokenIds = std::vector<uint32_t>;

struct GenerationSettings {
  int64_t max_new_tokens = 0;
  SamplingSettings sampling;
  TokenIds stop_tokens;
  const std::atomic<bool>* stop = nullptr;  // not owned; once it is true no pass begins any more
};

struct Continuation {
  TokenIds tokens;     // without the prompt and without the stop token
  bool ended = false;  // a stop token ended it, not max_new_tokens
};

// The cache that the prompts need: room for the longest prompt and max_new_tokens - 1 tokens, since
// no later token attends to the last one.
CacheSize cache_for(const std::vector<TokenIds>& prompts, int64_t max_new_tokens);

// kBadData when a prompt with its continuation is longer than the model's positions.
// `key` names the setting of max_new_tokens in the message.
Status check_lengths(const std::vector<TokenIds>& prompts, int64_t max_new_tokens,
                     const ModelConfig& config, const char* key);

// Returns one continuation for each prompt, those of the session's microbatches
// (PassRunner::microbatch_of()) side by side. Calls `on_token(prompt, token)`, if there is one, for
// each token as it comes. A prompt's continuation does not depend on the other prompts, except that
// sampling draws by its place among them. REQUIRES: the runner's cache is at least
// cache_for(prompts, max_new_tokens); no prompt is empty. Returns stop_status at the first signal,
// kStopped once settings.stop is true, kDiverged when logits are not numbers.
Result<std::vector<Continuation>> generate(
    PassRunner& runner, const std::vector<TokenIds>& prompts, const GenerationSettings& settings,
    const std::function<void(size_t, uint32_t)>& on_token = nullptr);

}  // namespace pagoda
