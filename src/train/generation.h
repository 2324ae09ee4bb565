// Continues prompts, all together, so that an expert that several of them want is read once.
#pragma once

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
};

struct Continuation {
  TokenIds tokens;     // without the prompt and without the stop token
  bool ended = false;  // by a stop token; else by max_new_tokens
};

// What the prompts need. A last token is never looked back at, so the longest prompt and
// max_new_tokens - 1.
CacheSize cache_for(const std::vector<TokenIds>& prompts, int64_t max_new_tokens);

// kBadData when a prompt with its continuation is longer than the model's positions or its window.
// `key` names the setting of max_new_tokens in the message.
Status check_lengths(const std::vector<TokenIds>& prompts, int64_t max_new_tokens,
                     const ModelConfig& config, const char* key);

// One continuation a prompt. `on_token(prompt, token)`, if there is one, is called as they come. A
// prompt's continuation does not depend on the others, except that sampling draws for its place
// among them. REQUIRES: the runner's cache is at least cache_for(prompts, max_new_tokens); no
// prompt is empty. As stop_status at the first signal, kDiverged when logits are not numbers.
Result<std::vector<Continuation>> generate(
    PassRunner& runner, const std::vector<TokenIds>& prompts, const GenerationSettings& settings,
    const std::function<void(size_t, uint32_t)>& on_token = nullptr);

}  // namespace pagoda
