// Tokenizer files that are wrong or hostile: one line, the documented code, little time and memory.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <functional>

#include "base/log.h"
#include "data/example.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tokenizer/tokenizer.h"
#include "train/prompts.h"

namespace pagoda {
namespace {

constexpr double kMostSeconds = 10;  // a refusal takes milliseconds; what it refuses, hours

class TokenizerRefusalTest : public testing::Test {
 protected:
  TokenizerRefusalTest() : good_(Json::parse(byte_tokenizer_json())) {
    put_file(dir_.file("tokenizer_config.json"), byte_tokenizer_config_json());
  }

  Status open_text(const std::string& text) {
    put_file(dir_.file("tokenizer.json"), text);
    return Tokenizer::open(dir_.path()).status();
  }
  Status open(const Json& json) { return open_text(json.dump()); }

  void expect_refused(const Status& status, const std::string& words,
                      Exit code = Exit::kBadData) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
    EXPECT_LT(status.message().size(), 1500u);
  }
  // `change` spoils the good file; the message must say `words`.
  void spoilt(const std::string& words, const std::function<void(Json&)>& change) {
    Json json = good_;
    change(json);
    SCOPED_TRACE(words);
    expect_refused(open(json), words);
  }

  const Json good_;
  TempDir dir_;
};

TEST_F(TokenizerRefusalTest, TheUnspoiltIsRead) { EXPECT_TRUE(open(good_).ok()); }

TEST_F(TokenizerRefusalTest, UnknownComponentsByName) {
  spoilt("WordPiece", [](Json& j) { j["model"]["type"] = "WordPiece"; });
  spoilt("Lowercase", [](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; });
  spoilt("normalizer.normalizers[1]: the component \"Nmt\"", [](Json& j) {
    j["normalizer"] = {{"type", "Sequence"},
                       {"normalizers", {{{"type", "NFC"}}, {{"type", "Nmt"}}}}};
  });
  spoilt("BertPreTokenizer", [](Json& j) { j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}}; });
  spoilt("RobertaProcessing", [](Json& j) {
    j["post_processor"] = {{"type", "RobertaProcessing"}};
  });
  spoilt("WordPiece", [](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; });
  spoilt("must be an object", [](Json& j) { j = Json::array(); });
  spoilt("model: must be an object", [](Json& j) { j.erase("model"); });
  spoilt("must be an object", [](Json& j) { j["decoder"] = 3; });
}

// Steps that multiply each other would fill any memory with a file of a kilobyte.
TEST_F(TokenizerRefusalTest, StepsThatMultiply) {
  const auto step = [](size_t bytes) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", "a"}}},
                {"content", std::string(bytes, 'a')}};
  };
  spoilt("normalizer: \"content\" is longer than 64 bytes",
         [&](Json& j) { j["normalizer"] = step(1000000); });
  spoilt("decoder: \"content\" is longer than 64 bytes", [&](Json& j) { j["decoder"] = step(65); });
  spoilt("normalizer: \"prepend\" is longer than 64 bytes", [](Json& j) {
    j["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(65, 'a')}};
  });
  for (const char* place : {"normalizer", "decoder"}) {
    spoilt(strf("%s: has more than 32 steps", place), [&](Json& j) {
      j[place] = {{"type", "Sequence"}, {strf("%ss", place), std::vector<Json>(33, step(1))}};
    });
  }
  Json json = good_;
  json["added_tokens"][0]["normalized"] = false;
  for (const char* place : {"normalizer", "decoder"}) {
    json[place] = {{"type", "Sequence"}, {strf("%ss", place), std::vector<Json>(12, step(16))}};
  }
  ASSERT_TRUE(open(json).ok());
  const Tokenizer tokenizer = std::move(Tokenizer::open(dir_.path()).value());
  std::vector<uint32_t> ids;
  expect_refused(tokenizer.encode("banana", &ids), "makes a text many times longer");
  // The same for many short texts of one call.
  std::string many;
  for (int i = 0; i < 100000; ++i) many += "a<|endoftext|>";
  expect_refused(tokenizer.encode(many, &ids), "makes a text many times longer");
  EXPECT_TRUE(tokenizer.encode("bbb", &ids).ok()) << "and goes on with others";
  EXPECT_LE(tokenizer.decode(std::vector<uint32_t>(3, 'a'), false).size(), 66000u);
}

TEST_F(TokenizerRefusalTest, UnknownFieldsAndValuesByName) {
  spoilt("\"encoder\"", [](Json& j) { j["encoder"] = nullptr; });
  spoilt("\"lower\"", [](Json& j) { j["pre_tokenizer"]["lower"] = false; });
  spoilt("\"dropout\"", [](Json& j) { j["model"]["dropout"] = 0.1; });
  spoilt("end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; });
  spoilt("\"add_prefix_space\"", [](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = "no"; });
  spoilt("MergedWithAll", [](Json& j) {
    j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", "a"}}},
                          {"behavior", "MergedWithAll"}, {"invert", false}};
  });
  spoilt("behind ByteLevel", [](Json& j) {
    j["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", {j["pre_tokenizer"], {{"type", "Digits"}}}}};
  });
  spoilt("first pre-tokenizer", [](Json& j) {
    Json last = j["pre_tokenizer"];
    last["add_prefix_space"] = true;
    j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}}, last}}};
  });
  spoilt("byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; });
  spoilt("one at most", [](Json& j) {
    const Json token = {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}};
    const Json ids = {{"id", "<|endoftext|>"}, {"ids", {256}}, {"tokens", {"<|endoftext|>"}}};
    j["post_processor"] = {{"type", "TemplateProcessing"},
                           {"single", {token, token, {{"Sequence", {{"id", "A"}}}}}},
                           {"pair", Json::array()},
                           {"special_tokens", {{"<|endoftext|>", ids}}}};
  });
}

TEST_F(TokenizerRefusalTest, IdsThatCannotBe) {
  spoilt("whole number below", [](Json& j) { j["model"]["vocab"]["A"] = 2147483647; });
  spoilt("whole number below", [](Json& j) { j["model"]["vocab"]["A"] = 18446744073709551615u; });
  spoilt("whole number below", [](Json& j) { j["model"]["vocab"]["A"] = -1; });
  spoilt("whole number below", [](Json& j) { j["model"]["vocab"]["A"] = 65.5; });
  spoilt("id 66 comes twice", [](Json& j) { j["model"]["vocab"]["A"] = 66; });
  spoilt("\"id\" must be a whole number", [](Json& j) {
    j["added_tokens"][0]["id"] = 18446744073709551615u;
  });
  spoilt("would give 256", [](Json& j) { j["added_tokens"][0]["id"] = 300; });
  spoilt("would give 256", [](Json& j) { j["added_tokens"][0]["id"] = 65; });
  spoilt("comes twice", [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); });
  spoilt("another added token", [](Json& j) {
    j["added_tokens"].push_back(j["added_tokens"][0]);
    j["added_tokens"][1]["content"] = "<b>";
  });
  spoilt("longer than 512",
         [](Json& j) { j["added_tokens"][0]["content"] = std::string(513, 'x'); });
  spoilt("is empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; });
}

TEST_F(TokenizerRefusalTest, MergesThatCannotBe) {
  spoilt("merge 0 (\"a\" with \"b\"): \"ab\" is not in",
         [](Json& j) { j["model"]["merges"] = {"a b"}; });
  spoilt("\"zz\" is not in", [](Json& j) { 
    j["model"]["merges"] = Json::array({Json::array({"zz", "b"})});
  });
  for (const Json& merge :
       {Json("a"), Json("a b c"), Json::array({"a"}), Json(3), Json::array({1, 2})}) {
    spoilt("merge 0 is not a pair", [&](Json& j) { j["model"]["merges"] = Json::array({merge}); });
  }
  spoilt("\"merges\" must be a list", [](Json& j) { j["model"]["merges"] = "a b"; });
  spoilt("unk_token \"<unk>\"", [](Json& j) { j["model"]["unk_token"] = "<unk>"; });
}

TEST_F(TokenizerRefusalTest, MissingByteTokens) {
  spoilt("byte 0x41 has no token \"A\"", [](Json& j) {
    j["model"]["vocab"].erase("A");
    j["model"]["vocab"]["AA"] = 65;
  });
  spoilt("byte 0x00 has no token \"<0x00>\"", [](Json& j) {
    j["pre_tokenizer"] = nullptr;
    j["model"]["byte_fallback"] = true;
  });
}

TEST_F(TokenizerRefusalTest, HostileJson) {
  expect_refused(open_text(std::string(500000, '[')), "nested deeper than 64");
  std::string nested;
  for (int i = 0; i < 500000; ++i) nested += "{\"normalizer\":";
  expect_refused(open_text(nested), "nested deeper than 64");
  // Sequences in Sequences, closed, to the depth that the reader lets through and beyond.
  for (const int depth : {20, 40, 1000}) {
    std::string inside = "{\"type\":\"Lowercase\"}";
    for (int i = 0; i < depth; ++i) {
      inside = "{\"type\":\"Sequence\",\"normalizers\":[" + inside + "]}";
    }
    expect_refused(open_text("{\"normalizer\":" + inside + "}"),
                   depth == 20 ? "Lowercase" : "nested deeper than 64");
  }
  expect_refused(open_text(""), "tokenizer.json");
  expect_refused(open_text("{\"model\":{\"model\":1,\"model\":2}}"), "duplicate key");
  expect_refused(open_text("{\"\x1b[31m\\u001b\\n\": 1}"), "tokenizer.json");
}

TEST_F(TokenizerRefusalTest, AHugeIdTakesNoMemory) {
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  Json json = good_;
  json["model"]["vocab"]["A"] = 2147483647;
  EXPECT_FALSE(open(json).ok());
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 32 * 1024) << "kB";
}

// The hub's cache looks like this: every file is a link to a blob elsewhere. A link must lead to a
// regular file, and one that leads nowhere is not overlooked.
TEST_F(TokenizerRefusalTest, FilesMayBeLinks) {
  namespace fs = std::filesystem;
  ASSERT_TRUE(open(good_).ok());
  fs::create_directories(dir_.file("blobs"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const std::string blob = dir_.file(std::string("blobs/") + name);
    fs::rename(dir_.file(name), blob);
    fs::create_symlink(std::string("blobs/") + name, dir_.file(name));
  }
  EXPECT_TRUE(Tokenizer::open(dir_.path()).ok()) << Tokenizer::open(dir_.path()).status().message();
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const std::string path = dir_.file(name), blob = dir_.file(std::string("blobs/") + name);
    fs::remove(path);
    ASSERT_EQ(mkfifo(dir_.file("pipe").c_str(), 0600), 0);
    for (const char* target : {"/dev/zero", "pipe", "blobs"}) {
      fs::create_symlink(target, path);
      expect_refused(Tokenizer::open(dir_.path()).status(), "not a regular file");
      fs::remove(path);
    }
    for (const char* target : {"nowhere", name}) {  // name: a link to itself
      fs::create_symlink(target, path);
      expect_refused(Tokenizer::open(dir_.path()).status(), name, Exit::kNoInput);
      fs::remove(path);
    }
    fs::remove(dir_.file("pipe"));
    fs::create_symlink(blob, path);
  }
}

TEST_F(TokenizerRefusalTest, OnlyRegularFiles) {
  namespace fs = std::filesystem;
  expect_refused(Tokenizer::open(dir_.file("absent")).status(), "cannot open", Exit::kNoInput);
  ASSERT_EQ(mkfifo(dir_.file("tokenizer.json").c_str(), 0600), 0);
  expect_refused(Tokenizer::open(dir_.path()).status(), "not a regular file");
  fs::remove(dir_.file("tokenizer.json"));
  fs::create_directory(dir_.file("tokenizer.json"));
  expect_refused(Tokenizer::open(dir_.path()).status(), "not a regular file");
  fs::remove(dir_.file("tokenizer.json"));
  put_file(dir_.file("tokenizer.json"), "");
  ASSERT_EQ(truncate(dir_.file("tokenizer.json").c_str(), (int64_t{1} << 26) + 1), 0);
  expect_refused(Tokenizer::open(dir_.path()).status(), "more than the limit");
}

class RegexRefusalTest : public TokenizerRefusalTest {
 protected:
  Status open_pattern(const std::string& pattern) {
    Json json = good_;
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"},
           {"invert", false}},
          good_["pre_tokenizer"]}}};
    return open(json);
  }
};

TEST_F(RegexRefusalTest, WhatTheTwoEnginesReadDifferently) {
  for (const char* pattern : {"\\h",     "\\R",
                              "\\X",     "\\b",
                              "\\Kx",    "\\1",
                              "\\Qa",    "[a&&b]",
                              "[[a]]",   "[[:alpha:]]",
                              "[\\w]",   "[a-\\d]",
                              "[\\s-a]", "a{,3}",
                              "a{2}+",   "(?i)a",
                              "(?m:a)",  "(?P<n>a)",
                              "(?<n>a)", "(?R)",
                              "(*UTF)a", "(*LIMIT_MATCH=1)a",
                              "(?#c)a",  "(?(1)a)",
                              "\\C",     "\\v",
                              "(?i:ss)", "\\x1",
                              "\\p{",    "\\pL"}) {
    expect_refused(open_pattern(pattern), "is not known to pagoda");
  }
  for (const char* pattern :
       {"(", "a)", "*", "[b-a]", "a{9999999}", "\\p{Nonsense}", "(?<=a*)b",
        "((((((((((((((((((((((((((((((((((((((((a))))))))))))))))))))))))))))))))"
        "))))))))"}) {
    expect_refused(open_pattern(pattern), "cannot be used");
  }
  expect_refused(open_pattern(""), "empty");
  expect_refused(open_pattern(std::string(20000, 'a')), "longer than");
  expect_refused(open_pattern("[a"), "is not known");
}

TEST_F(RegexRefusalTest, PatternsThatTakeForever) {
  for (const char* pattern :
       {"(a+)+$", "(a|a)*b", "(.*)*x", "(?:\\s+)+1", "(\\p{L}+)*!", "(a*)*(a*)*(a*)*b"}) {
    SCOPED_TRACE(pattern);
    const auto begin = std::chrono::steady_clock::now();
    expect_refused(open_pattern(pattern), "exponential");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), kMostSeconds);
  }
}

// A pattern that is bad only for what the probes do not hold: an error, not hours or other ids.
TEST_F(RegexRefusalTest, PatternsThatTakeForeverOnSomeTexts) {
  ASSERT_TRUE(open_pattern("(q+)+z").ok());
  const auto opened = Tokenizer::open(dir_.path());
  const std::string text = "qqz" + std::string(100000, 'q') + "!z";
  const auto begin = std::chrono::steady_clock::now();
  std::vector<uint32_t> ids;
  expect_refused(opened.value().encode(text, &ids),
                 "takes too long on a text of 100005 bytes, from byte 4 on (\"qqq");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), kMostSeconds);
  EXPECT_TRUE(opened.value().encode("qqz and more", &ids).ok()) << "and goes on with others";
}

// Through the data: the line is named, and nothing of it becomes an example.
TEST_F(RegexRefusalTest, TheLineOfALongTextIsNamed) {
  struct Counter : ExampleSink {
    Status example(Example&&) override {
      ++count;
      return Status();
    }
    int count = 0;
  };
  ASSERT_TRUE(open_pattern("(q+)+z").ok());
  const auto opened = Tokenizer::open(dir_.path());
  const std::string bad = std::string(100000, 'q') + "!z";  // without a z no place is tried
  put_file(dir_.file("rows.jsonl"), R"({"question":"a","answer":"b"})" "\n"
                                    R"({"question":"c","answer":")" + bad + "\"}\n");
  Counter counter;
  const Status row = read_examples({dir_.file("rows.jsonl")}, opened.value(), {}, counter);
  expect_refused(row, "rows.jsonl:2: the tokenizer's pattern takes too long");
  expect_refused(row, "nothing was trained, cut that text or leave it out");
  EXPECT_EQ(counter.count, 1);
  put_file(dir_.file("text.txt"), bad);
  const Status text = read_examples({dir_.file("text.txt")}, opened.value(), {}, counter);
  expect_refused(text, "text.txt: the tokenizer's pattern takes too long");
  expect_refused(encode_prompts({bad}, opened.value(), nullptr).status(),
                 "a prompt: the tokenizer's pattern takes too long");
}

// Quadratic, with few steps that run over the whole text: at many places, and at one. Short texts
// are cut as the pattern says, and on a long one the clock ends it.
TEST_F(RegexRefusalTest, PatternsThatTakeQuadraticTime) {
  for (const char* pattern : {"(?=.*[0-9][0-9])q", "(?:(?=[^0-9]*[0-9])q)+z"}) {
    SCOPED_TRACE(pattern);
    ASSERT_TRUE(open_pattern(pattern).ok());
    const auto opened = Tokenizer::open(dir_.path());
    std::vector<uint32_t> ids;
    const std::string five_thousand(5000, 'q');
    EXPECT_TRUE(opened.value().encode(five_thousand + "1", &ids).ok());
    EXPECT_EQ(ids.size(), 5001u);
    const std::string million(1 << 20, 'q');
    const std::clock_t begin = std::clock();  // processor time, which tokenizer/pattern.h limits
    expect_refused(opened.value().encode(million + "1", &ids), "takes too long");
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, kMostSeconds);
  }
}

TEST_F(TokenizerRefusalTest, TheEndTokenMustBeOne) {
  const auto with_config = [&](const char* name, const std::string& text) {
    put_file(dir_.file(name), text);
    return open(good_);
  };
  const char* config = "tokenizer_config.json";
  expect_refused(with_config(config, R"({"eos_token": "</s>"})"), "\"eos_token\" is \"</s>\"");
  expect_refused(with_config(config, R"({"eos_token": 2})"), "\"eos_token\" is 2");
  expect_refused(with_config(config, R"({"eos_token": {"content": {}}})"), "\"eos_token\"");
  expect_refused(with_config(config, "[]"), "must be a JSON object");
  ASSERT_TRUE(with_config(config, "{}").ok()) << "the only special token";
  expect_refused(with_config("config.json", R"({"eos_token_id": 257})"), "config.json");
  expect_refused(with_config("generation_config.json", R"({"eos_token_id": [-1]})"), "generation");
}

}  // namespace
}  // namespace pagoda
