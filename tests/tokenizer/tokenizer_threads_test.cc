// Several threads may encode with one tokenizer, whose cache they share.
#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/zstd_file.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {
namespace {

using Ids = std::vector<uint32_t>;

Tokenizer open_golden(const TempDir& dir) {
  const std::string base = PAGODA_GOLDEN_DIR "/tokenizers/smollm2";
  put_file(dir.file("tokenizer.json"), get_zstd_file(base + ".json.zst"));
  put_file(dir.file("tokenizer_config.json"), get_file(base + ".config.json"));
  return Tokenizer::open(dir.path()).take();
}

Ids encode(const Tokenizer& tokenizer, const std::string& text) {
  Ids ids;
  const Status status = tokenizer.encode(text, &ids);
  CHECK(status.ok(), "%s", status.message().c_str());
  return ids;
}

TEST(TokenizerThreads, GetTheSameIds) {
  const TempDir dir;
  const Tokenizer tokenizer = open_golden(dir);
  constexpr uint64_t kSeed = 11;
  std::vector<std::string> texts;
  for (uint64_t t = 0; t < 200; ++t) {
    std::string text;
    for (uint64_t i = 0; i < 60; ++i) {
      const auto bits = philox(kSeed, RandomPurpose::kTest, t, i);
      text += std::string(1 + bits[0] % 3, static_cast<char>('a' + bits[1] % 26));
      if (bits[2] % 4 == 0) text += ' ';
    }
    texts.push_back(text);
  }
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(encode(tokenizer, text));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = 0; i < texts.size(); ++i) {
        const size_t at = (i * 7 + static_cast<size_t>(thread) * 50) % texts.size();
        wrong[thread] += encode(tokenizer, texts[at]) != expected[at];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0)) << "seed " << kSeed;
}

}  // namespace
}  // namespace pagoda
