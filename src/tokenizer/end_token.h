// Finds the token that ends a text in the files beside tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tokenizer/added_tokens.h"

namespace pagoda {

// All ids that "eos_token_id" of DIRECTORY/generation_config.json and then of config.json names, an
// id or a list of them in each; none when neither has it. kBadData unless they are below
// vocab_size.
Result<std::vector<uint32_t>> end_token_ids(const std::string& directory, int64_t vocab_size);

// "eos_token" of DIRECTORY/tokenizer_config.json, a text or {"content": TEXT}; else the first of
// end_token_ids; else the only special one of `added`. `find` gives a token's id; ids are below
// vocab_size. kBadData when there is none, or what a file names is no token.
Result<uint32_t> end_token(const std::string& directory, const std::vector<AddedToken>& added,
                           int64_t vocab_size,
                           const std::function<std::optional<uint32_t>(const std::string&)>& find);

}  // namespace pagoda
