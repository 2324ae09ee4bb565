// The token cache: what comes back, when it is made again, and that it is whole or not there.
#include "data/token_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "data/text_source.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/token_cache.h"
#include "tokenizer/fingerprint.h"

namespace pagoda {
namespace {

class TokenFileTest : public testing::Test {
 protected:
  Result<TokenFile> make(const std::vector<Example>& examples, const TokenKey& key = test_key()) {
    return make_cache(path(), examples, key);
  }
  std::string path() const { return dir_.file("tokens.bin"); }
  // What making a cache of `examples` under `key` prints.
  std::string printed(const std::vector<Example>& examples, const TokenKey& key) {
    testing::internal::CaptureStderr();
    EXPECT_TRUE(make(examples, key).ok());
    return testing::internal::GetCapturedStderr();
  }

  TempDir dir_;
};

Example random_example(uint64_t seed, uint64_t index) {
  Example example;
  const int64_t count = 1 + random_below(seed, index, 50);
  const int64_t kind = random_below(seed, index + 1, 3);  // a text, spans, or any weights
  example.is_text = kind == 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t at = index + 2 + static_cast<uint64_t>(i);
    example.tokens.push_back(static_cast<uint32_t>(random_below(seed, 2 * at, 1 << 30)));
    const float any = static_cast<float>(random_below(seed, 2 * at + 1, 4)) / 4;
    example.weights.push_back(kind == 0 ? 1.0f : kind == 1 ? static_cast<float>(i / 7 % 2) : any);
  }
  return example;
}

TEST_F(TokenFileTest, GivesBackWhatWentIn) {
  const uint64_t seed = 21;
  std::vector<Example> examples;
  std::vector<Example> whole;  // pieces of a document joined
  bool open = false;
  for (uint64_t i = 0; i < 3000; ++i) {
    Example example = random_example(seed, i * 1000);
    example.continues = i < 2999 && random_below(seed, i * 1000 + 999, 5) == 0;
    if (!open) whole.emplace_back().is_text = true;
    whole.back().is_text = whole.back().is_text && example.is_text;
    whole.back().tokens.insert(whole.back().tokens.end(), example.tokens.begin(),
                               example.tokens.end());
    whole.back().weights.insert(whole.back().weights.end(), example.weights.begin(),
                                example.weights.end());
    open = example.continues;
    examples.push_back(std::move(example));
  }
  const TokenFile file = std::move(make(examples).value());
  ASSERT_EQ(file.num_documents(), static_cast<int64_t>(whole.size()));
  std::vector<TokenDocument> documents(whole.size());
  ASSERT_TRUE(file.documents(0, file.num_documents(), documents.data()).ok());
  int64_t tokens = 0, texts = 0;
  for (size_t d = 0; d < whole.size(); ++d) {
    const Example& want = whole[d];
    const auto count = static_cast<int64_t>(want.tokens.size());
    TokenDocument one;
    ASSERT_TRUE(file.documents(static_cast<int64_t>(d), 1, &one).ok());
    ASSERT_EQ(one.num_tokens, count) << "document " << d << ", seed " << seed;
    ASSERT_EQ(documents[d].num_tokens, count);
    std::vector<uint32_t> ids(want.tokens.size());
    ASSERT_TRUE(file.tokens(one, 0, count, ids.data()).ok());
    ASSERT_EQ(ids, want.tokens) << "document " << d;
    std::vector<float> weights(want.tokens.size()), part(want.tokens.size() / 2);
    ASSERT_TRUE(file.weights(one, count, weights.data()).ok());
    ASSERT_TRUE(file.weights(one, count / 2, part.data()).ok());
    uint32_t first_trained = kNoneTrained;
    for (size_t i = 1; i < weights.size(); ++i) {
      ASSERT_EQ(weights[i], want.weights[i]) << "document " << d << " token " << i;
      ASSERT_TRUE(i >= part.size() || part[i] == want.weights[i]);
      if (want.weights[i] > 0 && first_trained == kNoneTrained) first_trained = uint32_t(i);
    }
    ASSERT_EQ(one.first_trained, first_trained) << "document " << d;
    ASSERT_EQ(one.is_text(), want.is_text) << "document " << d;
    tokens += count;
    texts += want.is_text;
  }
  EXPECT_EQ(file.num_tokens(), tokens);
  EXPECT_GT(texts, 100);
  EXPECT_LT(texts, file.num_documents());
}

TEST_F(TokenFileTest, LongerThanTheWritersBlocks) {
  // 3 pieces of 200,000 tokens make one document, which spans blocks; a second follows.
  std::vector<Example> examples;
  for (uint32_t piece = 0; piece < 3; ++piece) {
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < 200000; ++i) tokens.push_back(piece * 200000 + i);
    examples.push_back(text_example(std::move(tokens)));
    examples.back().continues = piece < 2;
  }
  examples.push_back(text_example({7, 8}));
  const TokenFile file = std::move(make(examples).value());
  TokenDocument documents[2];
  ASSERT_TRUE(file.documents(0, 2, documents).ok());
  EXPECT_EQ(documents[0].num_tokens, 600000);
  EXPECT_EQ(documents[1].num_tokens, 2);
  std::vector<uint32_t> tokens(600000);
  ASSERT_TRUE(file.tokens(documents[0], 0, 600000, tokens.data()).ok());
  for (uint32_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(tokens[i], i);
}

TEST_F(TokenFileTest, AnotherKeyMakesItAgainAndSaysWhatIsOther) {
  const std::vector<Example> examples = {text_example({1, 2, 3})};
  EXPECT_EQ(printed(examples, test_key()), "") << "made for the first time";
  EXPECT_TRUE(make(examples)->reused());
  const std::string first = make(examples)->fingerprint();
  struct Change {
    std::string TokenKey::*part;
    const char* said;
  };
  for (const Change& change : {Change{&TokenKey::data, "made with other data"},
                               Change{&TokenKey::tokenizer, "made with another tokenizer"},
                               Change{&TokenKey::options, "another template or other options"}}) {
    TokenKey key = test_key();
    key.*change.part = test_hash('9');
    const std::string line = printed(examples, key);
    EXPECT_NE(line.find(change.said), std::string::npos) << line;
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
    EXPECT_NE(make(examples, key)->fingerprint(), first);
    EXPECT_TRUE(make(examples, key)->reused());
    EXPECT_FALSE(make(examples)->reused());
    EXPECT_EQ(make(examples)->fingerprint(), first);
  }
}

TEST_F(TokenFileTest, EveryDamagedByteMakesItAgain) {
  Example masked{{5, 6, 7}, {0, 0, 0.5f}, false};
  const std::vector<Example> examples = {text_example({1, 2, 3}), masked};
  ASSERT_TRUE(make(examples).ok());
  const std::string good = get_file(path());
  for (size_t at = 0; at < good.size(); ++at) {
    std::string spoiled = good;
    spoiled[at] = static_cast<char>(spoiled[at] ^ 4);
    put_file(path(), spoiled);
    const std::string line = printed(examples, test_key());
    ASSERT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << "byte " << at << ": " << line;
    ASSERT_NE(line.find("cannot be used"), std::string::npos) << "byte " << at << ": " << line;
    ASSERT_EQ(get_file(path()), good) << "byte " << at;
  }
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{199}, good.size() - 1}) {
    put_file(path(), good.substr(0, bytes));
    EXPECT_FALSE(make(examples)->reused()) << bytes << " bytes";
  }
  put_file(path(), good + "x");
  EXPECT_FALSE(make(examples)->reused());
  put_file(path() + ".tmp", "somebody else's");
  std::filesystem::remove(path());
  EXPECT_FALSE(make(examples)->reused());
  EXPECT_EQ(get_file(path()), good);
  EXPECT_EQ(get_file(path() + ".tmp"), "somebody else's");
}

// A header that is whole but says absurd sizes must not be believed.
TEST_F(TokenFileTest, SizesThatOverflowAreRefused) {
  const std::vector<Example> examples = {text_example({1, 2, 3})};
  ASSERT_TRUE(make(examples).ok());
  const std::string good = get_file(path());
  for (const int64_t words : {int64_t{-1}, int64_t{1} << 62, int64_t{4611686018427387904}}) {
    std::string spoiled = good;
    std::memcpy(spoiled.data() + 32, &words, 8);
    const std::string hash = fingerprint_of(spoiled.substr(0, 168));
    std::memcpy(spoiled.data() + 168, hash.data(), 32);
    put_file(path(), spoiled);
    EXPECT_FALSE(make(examples)->reused()) << words;
    EXPECT_EQ(get_file(path()), good);
  }
}

// Whoever changes a cache can change its checksums too. It is made again, or at least says that a
// token is none; it is never read beyond its end.
TEST_F(TokenFileTest, ForgedContentIsRefused) {
  Example masked{{5, 6, 7}, {0, 0, 0.5f}, false};
  const std::vector<Example> examples = {text_example({1, 2, 3}), masked};
  ASSERT_TRUE(make(examples).ok());
  const std::string good = get_file(path());
  const size_t index = good.size() - 2 * 16;
  const auto forged = [&](size_t at, const void* value, size_t bytes) {
    std::string file = good;
    std::memcpy(file.data() + at, value, bytes);
    const std::string content = fingerprint_of(file.substr(200));
    std::memcpy(file.data() + 136, content.data(), 32);
    const std::string header = fingerprint_of(file.substr(0, 168));
    std::memcpy(file.data() + 168, header.data(), 32);
    return file;
  };
  for (const uint64_t word : {uint64_t{1}, uint64_t{4}, uint64_t{1} << 40, ~uint64_t{0}}) {
    for (const size_t entry : {index, index + 16}) {
      put_file(path(), forged(entry, &word, 8));
      EXPECT_FALSE(make(examples)->reused()) << "first word " << word;
    }
  }
  for (const uint32_t count : {7u, ~0u, 1u << 31}) {
    put_file(path(), forged(index + 8, &count, 4));
    EXPECT_FALSE(make(examples)->reused()) << count << " runs";
    put_file(path(), forged(index + 12, &count, 4));
    EXPECT_EQ(make(examples)->reused(), count == kNoneTrained) << "first trained " << count;
  }
  const int64_t tokens = 1000;
  put_file(path(), forged(16, &tokens, 8));
  EXPECT_FALSE(make(examples)->reused()) << "tokens in all";
  const uint32_t none = ~0u;
  put_file(path(), forged(200 + 4, &none, 4));
  const TokenFile file = std::move(make(examples).value());
  ASSERT_TRUE(file.reused());
  TokenDocument document;
  ASSERT_TRUE(file.documents(0, 1, &document).ok());
  uint32_t ids[3];
  EXPECT_EQ(file.tokens(document, 0, 3, ids).code(), Exit::kIoError);
  EXPECT_TRUE(file.tokens(document, 0, 1, ids).ok());
}

TEST_F(TokenFileTest, AFailedReaderLeavesTheOldFile) {
  const std::vector<Example> examples = {text_example({1, 2, 3})};
  ASSERT_TRUE(make(examples).ok());
  const std::string good = get_file(path());
  TokenKey other = test_key();
  other.data = test_hash('8');
  const auto failed = TokenFile::open_or_create(path(), other, [](ExampleSink& sink) {
    RETURN_IF_ERROR(sink.example(text_example({9})));
    return Status(Exit::kBadData, "line 2 is bad");
  });
  EXPECT_EQ(failed.status().message(), "line 2 is bad");
  EXPECT_EQ(get_file(path()), good);
  EXPECT_EQ(files_in(dir_.path()), std::vector<std::string>{"tokens.bin"});
}

TEST_F(TokenFileTest, FilesCountByOrderKindAndBytes) {
  const std::string a = dir_.file("a.txt"), b = dir_.file("b.jsonl"), c = dir_.file("c.jsonl.gz");
  for (const std::string& name : {a, b, c}) put_file(name, "same bytes");
  const std::string ab = fingerprint_of_files({a, b}).value();
  EXPECT_NE(fingerprint_of_files({b, a}).value(), ab);
  EXPECT_NE(fingerprint_of_files({a, a}).value(), ab);
  EXPECT_NE(fingerprint_of_files({a}).value(), ab);
  EXPECT_NE(fingerprint_of_files({a, c}).value(), ab) << "read differently";
  std::filesystem::rename(b, dir_.file("v1.2-moved.jsonl"));
  EXPECT_EQ(fingerprint_of_files({a, dir_.file("v1.2-moved.jsonl")}).value(), ab);
  put_file(a, "same bytez");
  EXPECT_NE(fingerprint_of_files({a, dir_.file("v1.2-moved.jsonl")}).value(), ab);
  EXPECT_EQ(fingerprint_of_files({dir_.file("absent.txt")}).status().code(), Exit::kNoInput);
}

}  // namespace
}  // namespace pagoda
