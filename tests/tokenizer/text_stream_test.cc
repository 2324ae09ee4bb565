// Text as it comes: whole characters, and together what the tokens decode to.
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/zstd_file.h"
#include "tokenizer/text_stream.h"

namespace pagoda {
namespace {

// Every byte is a token, so every character beyond ASCII is several.
Tokenizer byte_tokenizer() {
  const TempDir dir;
  put_file(dir.file("tokenizer.json"), byte_tokenizer_json());
  put_file(dir.file("tokenizer_config.json"), byte_tokenizer_config_json());
  return std::move(Tokenizer::open(dir.path()).value());
}

std::vector<uint32_t> bytes_of(const std::string& text) {
  std::vector<uint32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

TEST(TextStream, GivesWholeCharacters) {
  const std::string prompt = "caf\u00e9 ", text = "na\u00efve \u2603 \U0001F600 end";
  TextStream stream(byte_tokenizer(), bytes_of(prompt));
  std::string all;
  int pieces = 0;
  for (const uint32_t token : bytes_of(text)) {
    const std::string piece = stream.add(token);
    EXPECT_EQ(first_invalid_utf8(piece), std::string_view::npos);
    EXPECT_EQ(piece.find("\uFFFD"), std::string::npos) << "half a character after " << all;
    all += piece;
    pieces += !piece.empty();
  }
  EXPECT_EQ(all, text);
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(pieces, 13) << "a piece a character";
}

TEST(TextStream, WhatNeverBecomesACharacterIsReplaced) {
  TextStream stream(byte_tokenizer(), bytes_of("a"));
  std::string all;
  for (const uint32_t token : bytes_of("x\xE2\x98y\xF0\x9F")) all += stream.add(token);
  EXPECT_EQ(all.front(), 'x');
  EXPECT_NE(all.find("\uFFFD"), std::string::npos) << "the byte after shows that it never will";
  EXPECT_EQ(all.back(), 'y') << "what may still become one is held back";
  EXPECT_NE(stream.finish().find("\uFFFD"), std::string::npos);
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, SpecialTokensHaveNoText) {
  TextStream stream(byte_tokenizer(), bytes_of("a"));
  EXPECT_EQ(stream.add(256), "");
  EXPECT_EQ(stream.add('b'), "b");
}

class StreamsOf : public testing::TestWithParam<const char*> {};

// Real tokenizers: spaces that a text does not begin with, characters of several tokens.
TEST_P(StreamsOf, WhatTheTokensDecodeTo) {
  const std::string golden = std::string(PAGODA_GOLDEN_DIR) + "/tokenizers/";
  const TempDir dir;
  put_file(dir.file("tokenizer.json"), get_zstd_file(golden + GetParam() + ".json.zst"));
  put_file(dir.file("tokenizer_config.json"), get_file(golden + GetParam() + ".config.json"));
  const Tokenizer tokenizer = std::move(Tokenizer::open(dir.path()).value());
  const Json strings = Json::parse(get_zstd_file(golden + "strings.json.zst"));
  constexpr size_t kTogether = 5;
  for (size_t i = 0; i + kTogether <= strings.size(); i += kTogether) {
    std::vector<uint32_t> tokens;
    for (size_t j = i; j < i + kTogether; ++j) {
      ASSERT_TRUE(tokenizer.encode(strings[j].get<std::string>(), &tokens).ok());
    }
    const auto half = tokens.begin() + static_cast<ptrdiff_t>(tokens.size() / 2);
    const std::vector<uint32_t> prompt(tokens.begin(), half), more(half, tokens.end());
    TextStream stream(tokenizer, prompt);
    std::string all;
    for (const uint32_t token : more) all += stream.add(token);
    ASSERT_EQ(all + stream.finish(), continuation_text(tokenizer, prompt, more))
        << GetParam() << ", strings " << i << " to " << i + kTogether - 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, StreamsOf,
                         testing::Values("smollm2", "qwen2", "gpt2", "mixtral"));

// A token costs as much behind many as behind few; else this takes minutes.
TEST(TextStream, ALongTextTakesNoLongerAToken) {
  TextStream stream(byte_tokenizer(), bytes_of("a"));
  const std::string text = "na\u00efve \u2603 end. ";
  size_t bytes = 0;
  for (int i = 0; i < 10000; ++i) {
    for (const uint32_t token : bytes_of(text)) bytes += stream.add(token).size();
  }
  EXPECT_EQ(bytes, 10000 * text.size());
}

TEST(TextStream, TogetherItIsTheContinuation) {
  const auto prompt = bytes_of("over "), more = bytes_of("\u00fcber \u2603!");
  EXPECT_EQ(continuation_text(byte_tokenizer(), prompt, more), "\u00fcber \u2603!");
  EXPECT_EQ(continuation_text(byte_tokenizer(), prompt, {}), "");
}

}  // namespace
}  // namespace pagoda
