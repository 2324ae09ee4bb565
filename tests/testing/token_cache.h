// Token caches made of examples in memory.
#pragma once

#include <string>
#include <vector>

#include "data/token_file.h"

namespace pagoda {

// 32 times `digit`.
std::string test_hash(char digit);

TokenKey test_key();

Result<TokenFile> make_cache(const std::string& path, const std::vector<Example>& examples,
                             const TokenKey& key = test_key());

// Whole numbers below `most` that depend on (seed, index) only.
int64_t random_below(uint64_t seed, uint64_t index, int64_t most);

// A text of n tokens: every weight is 1.
Example text_example(std::vector<uint32_t> tokens);

}  // namespace pagoda
