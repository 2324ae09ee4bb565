// A tokenizer as entries of a GGUF file: ids, kinds and names as llama.cpp reads them
// (gguf-py/gguf/constants.py, convert_hf_to_gguf_update.py).
#include "gguf/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/gguf/gguf_text.h"
#include "tests/testing/files.h"
#include "tests/testing/golden.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/zstd_file.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {
namespace {

TEST(GgufTokenizer, TheByteTokenizerIsThere) {
  TempDir dir;
  put_file(dir.file("tokenizer.json"), byte_tokenizer_json());
  put_file(dir.file("tokenizer_config.json"), byte_tokenizer_config_json());
  put_file(dir.file("chat_template.jinja"), "{{ messages }}");
  GgufEntries entries;
  const Status added = add_tokenizer_entries(dir.path(), 300, entries);
  ASSERT_TRUE(added.ok()) << added.message();
  const GgufText file = read_back(entries, dir.file("t.gguf"));
  EXPECT_EQ(file.entry("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(file.entry("tokenizer.ggml.pre"), "gpt-2");
  EXPECT_EQ(file.entry("tokenizer.ggml.tokens").size(), 300u);
  EXPECT_EQ(file.entry("tokenizer.ggml.tokens")[65], "A");
  EXPECT_EQ(file.entry("tokenizer.ggml.tokens")[32], "\xc4\xa0") << "a space";
  EXPECT_EQ(file.entry("tokenizer.ggml.tokens")[256], "<|endoftext|>");
  EXPECT_EQ(file.entry("tokenizer.ggml.tokens")[299], "[PAD299]");
  EXPECT_EQ(file.entry("tokenizer.ggml.token_type")[65], 1);
  EXPECT_EQ(file.entry("tokenizer.ggml.token_type")[256], 3) << "a control token";
  EXPECT_EQ(file.entry("tokenizer.ggml.token_type")[299], 5) << "unused";
  EXPECT_EQ(file.entry("tokenizer.ggml.eos_token_id"), 256);
  EXPECT_EQ(file.entry("tokenizer.ggml.merges"), Json::array());
  EXPECT_EQ(file.entry("tokenizer.chat_template"), "{{ messages }}");
  GgufEntries small;
  EXPECT_EQ(add_tokenizer_entries(dir.path(), 256, small).code(), Exit::kBadData)
      << "the model has fewer ids";
}

// Tokenizers of published models (tests/golden/tokenizers).
GgufText file_of_tokenizer(const TempDir& dir, const std::string& name) {
  const std::string base = golden("tokenizers/" + name);
  put_file(dir.file("tokenizer.json"), get_zstd_file(base + ".json.zst"));
  put_file(dir.file("tokenizer_config.json"), get_file(base + ".config.json"));
  GgufEntries entries;
  const Status added = add_tokenizer_entries(dir.path(), 160000, entries);
  CHECK(added.ok(), "%s", added.message().c_str());
  return read_back(entries, dir.file(name + ".gguf"));
}

TEST(GgufTokenizer, WordsOfPublishedTokenizersHaveANameInLlama) {
  for (const auto& [name, pre] :
       {std::pair("gpt2", "gpt-2"), {"qwen2", "qwen2"}, {"smollm2", "smollm"}}) {
    TempDir dir;
    const GgufText file = file_of_tokenizer(dir, name);
    EXPECT_EQ(file.entry("tokenizer.ggml.model"), "gpt2") << name;
    EXPECT_EQ(file.entry("tokenizer.ggml.pre"), pre) << name;
    EXPECT_GT(file.entry("tokenizer.ggml.merges").size(), 10000u) << name;
    EXPECT_FALSE(file.has("tokenizer.ggml.scores")) << name;
  }
}

// Ids as in Mixtral's tokenizer.model: <unk>, <s>, </s>, the bytes, then the pieces.
TEST(GgufTokenizer, SentencePiecesHaveScores) {
  TempDir dir;
  const GgufText file = file_of_tokenizer(dir, "mixtral");
  EXPECT_EQ(file.entry("tokenizer.ggml.model"), "llama");
  const Json tokens = file.entry("tokenizer.ggml.tokens");
  const Json kinds = file.entry("tokenizer.ggml.token_type");
  const Json scores = file.entry("tokenizer.ggml.scores");
  EXPECT_EQ(kinds[0], 2) << "<unk>";
  EXPECT_EQ(kinds[1], 3) << "<s>";
  EXPECT_EQ(tokens[3 + 10], "<0x0A>");
  EXPECT_EQ(kinds[3 + 10], 6);
  EXPECT_EQ(file.entry("tokenizer.ggml.bos_token_id"), 1);
  EXPECT_EQ(file.entry("tokenizer.ggml.eos_token_id"), 2);
  EXPECT_EQ(file.entry("tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(file.entry("tokenizer.ggml.add_space_prefix"), true);
  const auto score_of = [&](const char* token) {
    const auto found = std::find(tokens.begin(), tokens.end(), token);
    CHECK(found != tokens.end(), "no %s", token);
    return scores[static_cast<size_t>(found - tokens.begin())].get<float>();
  };
  EXPECT_GT(score_of("\xe2\x96\x81t"), score_of("\xe2\x96\x81the")) << "merged before it";
  EXPECT_GT(score_of("\xe2\x96\x81the"), score_of("\xe2\x96\x81their"));
  EXPECT_LT(score_of("\xe2\x96\x81t"), 0.0f);
}

int64_t id_of(const GgufText& file, const char* token) {
  const Json& tokens = file.entry("tokenizer.ggml.tokens");
  const auto found = std::find(tokens.begin(), tokens.end(), token);
  CHECK(found != tokens.end(), "no %s", token);
  return found - tokens.begin();
}

// SmolLM2's tokenizer_config.json names its tokens and has its template; GPT-2's first merge is
// that of a space and a t, and Qwen2's tokens for code in the middle are not special.
TEST(GgufTokenizer, WhatTokenizerConfigSays) {
  TempDir dir;
  const GgufText smollm2 = file_of_tokenizer(dir, "smollm2");
  EXPECT_EQ(smollm2.entry("tokenizer.ggml.bos_token_id"), id_of(smollm2, "<|im_start|>"));
  EXPECT_EQ(smollm2.entry("tokenizer.ggml.padding_token_id"), id_of(smollm2, "<|im_end|>"));
  EXPECT_EQ(smollm2.entry("tokenizer.ggml.add_bos_token"), false);
  EXPECT_TRUE(smollm2.entry("tokenizer.chat_template")
                  .get<std::string>()
                  .starts_with("{% for message in messages %}"));
  EXPECT_EQ(file_of_tokenizer(dir, "gpt2").entry("tokenizer.ggml.merges")[0], "\xc4\xa0 t");
  const GgufText qwen2 = file_of_tokenizer(dir, "qwen2");
  const Json& kinds = qwen2.entry("tokenizer.ggml.token_type");
  EXPECT_EQ(kinds[static_cast<size_t>(id_of(qwen2, "<|fim_suffix|>"))], 4) << "a user's token";
  EXPECT_EQ(kinds[static_cast<size_t>(id_of(qwen2, "<|im_end|>"))], 3) << "a control token";
}

// A tokenizer that merges "a" and "b", and cuts words as it is told.
Result<GgufText> file_with_words(const TempDir& dir, const Json& pre_tokenizer, bool whole_words) {
  Json root = Json::parse(byte_tokenizer_json());
  root["pre_tokenizer"] = pre_tokenizer;
  root["model"]["vocab"]["ab"] = 256;
  root["added_tokens"][0]["id"] = 257;
  root["model"]["merges"] = {"a b"};
  root["model"]["ignore_merges"] = whole_words;
  put_file(dir.file("tokenizer.json"), root.dump());
  put_file(dir.file("tokenizer_config.json"), byte_tokenizer_config_json());
  GgufEntries entries;
  RETURN_IF_ERROR(add_tokenizer_entries(dir.path(), 300, entries));
  return read_back(entries, dir.file("w.gguf"));
}

// Llama 3 and GLM-4 cut alike, and only the first takes whole words whatever the merges say.
TEST(GgufTokenizer, WaysToCutWordsHaveNames) {
  TempDir dir;
  const Json gpt2 = {{"type", "ByteLevel"},
                     {"add_prefix_space", false},
                     {"trim_offsets", true},
                     {"use_regex", true}};
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", false}};
  const Json split = {{"type", "Split"},
                      {"pattern",
                       {{"Regex",
                         "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                         " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const auto in_turn = [](const Json& first, const Json& second) {
    return Json{{"type", "Sequence"}, {"pretokenizers", Json::array({first, second})}};
  };
  const auto name_of = [&](const Json& steps, bool whole_words) -> Json {
    auto file = file_with_words(dir, steps, whole_words);
    if (!file.ok()) return file.status().message();
    EXPECT_EQ(file->entry("tokenizer.ggml.merges"), Json::array({"a b"}));
    return file->entry("tokenizer.ggml.pre");
  };
  EXPECT_EQ(name_of(gpt2, false), "gpt-2");
  EXPECT_EQ(name_of(in_turn(split, bytes), true), "llama-bpe");
  EXPECT_EQ(name_of(in_turn(split, bytes), false), "glm4");
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(name_of(in_turn(digits, gpt2), false), "smollm");
  Json groups = digits;
  groups["individual_digits"] = false;
  EXPECT_NE(name_of(in_turn(groups, gpt2), false).get<std::string>().find("has no name here"),
            std::string::npos);
  EXPECT_NE(name_of(gpt2, true).get<std::string>().find("has no name here"), std::string::npos);
}

}  // namespace
}  // namespace pagoda
