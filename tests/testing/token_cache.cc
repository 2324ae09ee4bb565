#include "tests/testing/token_cache.h"

#include "base/random.h"

namespace pagoda {

std::string test_hash(char digit) { return std::string(32, digit); }

TokenKey test_key() { return {test_hash('1'), test_hash('2'), test_hash('3')}; }

Result<TokenFile> make_cache(const std::string& path, const std::vector<Example>& examples,
                             const TokenKey& key) {
  return TokenFile::open_or_create(path, key, [&](ExampleSink& sink) {
    for (const Example& example : examples) RETURN_IF_ERROR(sink.example(Example(example)));
    return Status();
  });
}

int64_t random_below(uint64_t seed, uint64_t index, int64_t most) {
  return static_cast<int64_t>(philox(seed, RandomPurpose::kTest, index, 0)[0] %
                              static_cast<uint64_t>(most));
}

Example text_example(std::vector<uint32_t> tokens) {
  std::vector<float> weights(tokens.size(), 1.0f);
  return {std::move(tokens), std::move(weights), false, true};
}

}  // namespace pagoda
