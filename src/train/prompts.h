// Prompts as tokens.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/hf_folder.h"
#include "data/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "train/generation.h"

namespace pagoda {

// Encodes each text as the beginning of a document, behind begin-of-text if the tokenizer has one;
// or, with `chat`, as a user's turn in its template, up to where the answer begins. kUsage when one
// is empty, kBadData when there is no chat template or it has no place for a user's turn.
Result<std::vector<TokenIds>> encode_prompts(const std::vector<std::string>& texts,
                                             const Tokenizer& tokenizer, const ChatTemplate* chat);

// The tokens that end a continuation: the tokenizer's end-of-text, every eos_token_id of the
// folder's config.json and generation_config.json, and, with `chat`, the end of its answers if that
// is one token. kBadData when the model has no such id.
Result<TokenIds> stop_tokens(const Tokenizer& tokenizer, const HfFolder& folder,
                             const ChatTemplate* chat);

}  // namespace pagoda
