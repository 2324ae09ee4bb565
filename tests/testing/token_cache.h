// Token caches made of examples in memory.
#pragma once

#include <string>
#include <vector>

#include "base/random.h"
#include "data/token_file.h"

namespace pagoda {

inline std::string test_hash(char digit) { return std::string(32, digit); }

inline TokenKey test_key() { return {test_hash('1'), test_hash('2'), test_hash('3')}; }

inline Result<TokenFile> make_cache(const std::string& path, const std::vector<Example>& examples,
                                    const TokenKey& key = test_key()) {
  return TokenFile::open_or_create(path, key, [&](ExampleSink& sink) {
    for (const Example& example : examples) RETURN_IF_ERROR(sink.example(Example(example)));
    return Status();
  });
}

// Whole numbers below `most` that depend on (seed, index) only.
inline int64_t random_below(uint64_t seed, uint64_t index, int64_t most) {
  return static_cast<int64_t>(philox(seed, RandomPurpose::kTest, index, 0)[0] %
                              static_cast<uint64_t>(most));
}

// A text of n tokens: every weight is 1.
inline Example text_example(std::vector<uint32_t> tokens) {
  std::vector<float> weights(tokens.size(), 1.0f);
  return {std::move(tokens), std::move(weights), false};
}

}  // namespace pagoda
