// Ids, ranges and decoded texts against Hugging Face tokenizers, on strings that tokenizers get
// wrong; tests/golden/tokenizers/README.md says what is in the files and how they were made.
#include <gtest/gtest.h>

#include <sstream>

#include "base/log.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/zstd_file.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {
namespace {

std::string golden(const std::string& name) {
  return std::string(PAGODA_GOLDEN_DIR "/tokenizers/") + name;
}

// The ranges of a vector: [begin - end before, length] of each.
std::vector<TokenRange> ranges_of(const Json& flat) {
  std::vector<TokenRange> ranges;
  int64_t end = 0;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) {
    const int64_t begin = end + flat[i].get<int64_t>();
    end = begin + flat[i + 1].get<int64_t>();
    ranges.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
  }
  return ranges;
}

std::string shown(const std::vector<uint32_t>& ids) {
  std::ostringstream out;
  for (size_t i = 0; i < ids.size() && i < 60; ++i) out << ids[i] << ' ';
  return out.str();
}

void check_decoding(const Tokenizer& tokenizer, const Json& vector, const std::string& text) {
  const auto ids = vector["ids"].get<std::vector<uint32_t>>();
  const std::string whole = vector.value("text", text);
  ASSERT_EQ(tokenizer.decode(ids, false), whole);
  ASSERT_EQ(tokenizer.decode(ids, true), vector.value("plain", whole));
}

void check_string(const Tokenizer& tokenizer, const Json& vector, const std::string& text) {
  SCOPED_TRACE("\"" + printable(text) + "\"");
  std::vector<uint32_t> ids, again;
  std::vector<TokenRange> ranges;
  ASSERT_TRUE(tokenizer.encode(text, &ids, &ranges).ok());
  const auto expected = vector["ids"].get<std::vector<uint32_t>>();
  ASSERT_EQ(ids, expected) << "got " << shown(ids) << "\nnot " << shown(expected);
  ASSERT_EQ(ranges.size(), ids.size());
  if (vector.contains("ranges")) {
    const std::vector<TokenRange> wanted = ranges_of(vector["ranges"]);
    ASSERT_EQ(wanted.size(), ranges.size());
    for (size_t i = 0; i < ranges.size(); ++i) {
      ASSERT_TRUE(ranges[i] == wanted[i])
          << "token " << i << " (" << ids[i] << "): [" << ranges[i].begin << ", " << ranges[i].end
          << ") instead of [" << wanted[i].begin << ", " << wanted[i].end << ")";
    }
  }
  ASSERT_TRUE(tokenizer.encode(text, &again).ok());
  ASSERT_EQ(again, ids) << "without ranges";
  check_decoding(tokenizer, vector, text);
}

class VectorsTest : public testing::Test {
 protected:
  void write(const std::string& tokenizer, const std::string& config) {
    put_file(dir_.file("tokenizer.json"), tokenizer);
    put_file(dir_.file("tokenizer_config.json"), config);
  }
  // At least 2,000 strings, then lists of random ids.
  void check(const std::string& name) {
    const auto opened = Tokenizer::open(dir_.path());
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    const Tokenizer& tokenizer = opened.value();
    const Json strings = Json::parse(get_zstd_file(golden("strings.json.zst")));
    std::istringstream lines(get_zstd_file(golden(name + ".vectors.zst")));
    size_t count = 0, lists = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json vector = Json::parse(line);
      if (count < strings.size()) {
        check_string(tokenizer, vector, strings[count++].get<std::string>());
      } else {
        ++lists;
        check_decoding(tokenizer, vector, "");
      }
      ASSERT_FALSE(HasFatalFailure()) << name << ", string " << count << ", list " << lists;
    }
    EXPECT_GE(count, 2000u);
    EXPECT_GE(lists, 100u);
    printf("%s: %zu strings, %zu lists of ids\n", name.c_str(), count, lists);
  }
  void check_source(const std::string& name) {
    write(get_zstd_file(golden(name + ".json.zst")), get_file(golden(name + ".config.json")));
    check(name);
  }
  TempDir dir_;
};

TEST_F(VectorsTest, SmolLm2) { check_source("smollm2"); }
TEST_F(VectorsTest, Qwen2) { check_source("qwen2"); }
TEST_F(VectorsTest, Gpt2) { check_source("gpt2"); }
TEST_F(VectorsTest, Mixtral) { check_source("mixtral"); }

// The same vocabulary as newer converters write it.
TEST_F(VectorsTest, MixtralWithMetaspace) {
  Json tokenizer = Json::parse(get_zstd_file(golden("mixtral.json.zst")));
  tokenizer["normalizer"] = nullptr;
  tokenizer["pre_tokenizer"] = {{"type", "Metaspace"},
                                {"replacement", "\u2581"},
                                {"prepend_scheme", "first"},
                                {"split", false}};
  write(tokenizer.dump(), get_file(golden("mixtral.config.json")));
  check("mixtral_metaspace");
}

// Small tokenizers: each component with each of its options.
TEST_F(VectorsTest, Components) {
  std::istringstream lines(get_zstd_file(golden("components.zst")));
  size_t count = 0, strings = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json one = Json::parse(line);
    Json outline = one["tokenizer"];
    outline["model"].erase("vocab");
    outline["model"].erase("merges");
    SCOPED_TRACE(outline.dump());
    write(one["tokenizer"].dump(), R"({"eos_token": "<x>"})");
    const auto tokenizer = Tokenizer::open(dir_.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    for (const Json& vector : one["vectors"]) {
      check_string(tokenizer.value(), vector, vector["string"].get<std::string>());
      ASSERT_FALSE(HasFatalFailure()) << "tokenizer " << count << ", string " << strings;
      ++strings;
    }
  }
  EXPECT_GE(count, 100u);
  printf("%zu tokenizers, %zu strings\n", count, strings);
}

}  // namespace
}  // namespace pagoda
