// Which token ends a text, from the files beside tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tokenizer/added_tokens.h"

namespace pagoda {

// "eos_token" of DIRECTORY/tokenizer_config.json, a text or {"content": TEXT}; else "eos_token_id"
// of generation_config.json or config.json, an id or a list of which the first counts; else the
// only special one of `added`. `find` gives a token's id; ids are below vocab_size. kBadData when
// there is none, or what a file names is no token.
Result<uint32_t> end_token(const std::string& directory, const std::vector<AddedToken>& added,
                           int64_t vocab_size,
                           const std::function<std::optional<uint32_t>(const std::string&)>& find);

}  // namespace pagoda
