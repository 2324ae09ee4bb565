// Tests which tokens of a row are trained: every preset with real tokenizers and rows of every
// kind, against Transformers (tests/golden/chat/masks.zst) and against marks made by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/log.h"
#include "data/example.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/zstd_file.h"

namespace pagoda {
namespace {

// [begin, end) of tokens.
using Span = std::pair<size_t, size_t>;

struct Collector : ExampleSink {
  Status example(Example&& example) override {
    examples.push_back(std::move(example));
    return Status();
  }
  void file(const std::string&, RowKind of) override { kind = of; }
  std::vector<Example> examples;
  RowKind kind = RowKind::kAuto;
};

// The spans of one message are one run of tokens with weight 1, but so are those of two messages
// without a masked token between them, as in "b</s>c</s>".
std::vector<Span> runs_of(const std::vector<float>& weights) {
  std::vector<Span> runs;
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(weights[i] == 0 || weights[i] == 1) << weights[i];
    if (weights[i] == 0) continue;
    if (runs.empty() || runs.back().second != i) runs.push_back({i, i});
    ++runs.back().second;
  }
  return runs;
}

std::vector<Span> joined(const std::vector<Span>& spans) {
  std::vector<Span> runs;
  for (const Span& span : spans) {
    if (!runs.empty() && runs.back().second >= span.first) {
      runs.back().second = std::max(runs.back().second, span.second);
    } else {
      runs.push_back(span);
    }
  }
  return runs;
}

class MaskTest : public testing::Test {
 protected:
  // A tokenizer of tests/golden/tokenizers, with tokens added, with Metaspace for the normalizer.
  Tokenizer open(const std::string& name, const Json& added = Json::array(),
                 bool metaspace = false) {
    const std::string base = PAGODA_GOLDEN_DIR "/tokenizers/" + name;
    Json root = Json::parse(get_zstd_file(base + ".json.zst"));
    put_file(dir_.file("tokenizer.json"), root.dump());
    put_file(dir_.file("tokenizer_config.json"), get_file(base + ".config.json"));
    int64_t next = added.empty() ? 0 : Tokenizer::open(dir_.path()).value().vocab_size();
    for (const Json& content : added) {
      root["added_tokens"].push_back({{"id", next++}, {"content", content},
                                      {"single_word", false}, {"lstrip", false},
                                      {"rstrip", false}, {"normalized", false},
                                      {"special", false}});
    }
    if (metaspace) {
      root["normalizer"] = nullptr;
      root["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"},
                               {"prepend_scheme", "first"}, {"split", false}};
    }
    put_file(dir_.file("tokenizer.json"), root.dump());
    return Tokenizer::open(dir_.path()).value();
  }
  Collector read(const std::string& rows, const Tokenizer& tokenizer,
                 const ExampleOptions& options) {
    put_file(dir_.file("rows.jsonl"), rows);
    Collector collector;
    const Status status = read_examples({dir_.file("rows.jsonl")}, tokenizer, options, collector);
    EXPECT_TRUE(status.ok()) << status.message();
    return collector;
  }
  void compare(const Json& rows, const Json& results, const Tokenizer& tokenizer,
               ExampleOptions options, const std::string& kind);

  TempDir dir_;
  int64_t num_rows_ = 0, num_tokens_ = 0, num_spans_ = 0;
};

// The rows of one kind; where nothing was expected the template refuses the row.
void MaskTest::compare(const Json& rows, const Json& results, const Tokenizer& tokenizer,
                       ExampleOptions options, const std::string& kind) {
  ASSERT_EQ(rows.size(), results.size());
  std::string lines;
  std::vector<Json> expected;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (results[i].is_null()) continue;
    lines += rows[i].dump() + "\n";
    expected.push_back(results[i]);
  }
  for (const TrainOn train_on : {TrainOn::kAssistant, TrainOn::kLast}) {
    options.train_on = train_on;
    const Collector got = read(lines, tokenizer, options);
    EXPECT_STREQ(name_of(got.kind), kind.c_str());
    ASSERT_EQ(got.examples.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE(strf("%s row %zu, train_on %s", kind.c_str(), i, name_of(train_on)));
      ASSERT_EQ(got.examples[i].tokens, expected[i]["ids"].get<std::vector<uint32_t>>());
      auto spans = expected[i]["trained"].get<std::vector<Span>>();
      if (train_on == TrainOn::kLast) spans = {spans.back()};
      ASSERT_EQ(runs_of(got.examples[i].weights), joined(spans));
      ++num_rows_;
      num_tokens_ += static_cast<int64_t>(got.examples[i].tokens.size());
      num_spans_ += static_cast<int64_t>(spans.size());
    }
  }
}

TEST_F(MaskTest, TrainedTokensAreThoseOfTransformers) {
  std::istringstream lines(get_zstd_file(PAGODA_GOLDEN_DIR "/chat/masks.zst"));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const Json rows = Json::parse(line)["rows"];
  EXPECT_EQ(rows.size(), 5u) << "kinds of rows";
  std::vector<std::string> presets;
  int cases = 0;
  for (; std::getline(lines, line); ++cases) {
    const Json golden = Json::parse(line);
    const auto preset = golden["preset"].get<std::string>();
    const auto name = golden["tokenizer"].get<std::string>();
    SCOPED_TRACE(preset + ", " + name);
    ExampleOptions options;
    options.chat.preset = find_chat_preset(preset);
    ASSERT_NE(options.chat.preset, nullptr);
    options.chat.special = {golden["bos_token"], golden["eos_token"]};
    const Tokenizer tokenizer = open(name, golden["added"], golden["metaspace"].get<bool>());
    for (const auto& [kind, of] : rows.items()) {
      compare(of, golden["results"][kind], tokenizer, options, kind);
      ASSERT_FALSE(HasFatalFailure());
    }
    presets.push_back(preset);
  }
  for (const ChatPreset& preset : chat_presets()) {
    EXPECT_TRUE(std::count(presets.begin(), presets.end(), preset.name)) << preset.name;
  }
  EXPECT_GT(num_spans_, 5000);
  printf("%d presets with tokenizers: %lld rows, %lld tokens, %lld trained spans compared\n", cases,
         (long long)num_rows_, (long long)num_tokens_, (long long)num_spans_);
}

// Marked by hand: tokens with a dot between them, the trained ones in brackets.
TEST_F(MaskTest, TokensMarkedByHand) {
  const std::string rows[] = {
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":"b c"}]})",
      R"({"conversations":[{"from":"system","value":"s"},{"from":"human","value":"a"},)"
      R"({"from":"gpt","value":"b c"}]})",
      R"({"system":"s","instruction":"a","input":"","output":"b c"})",
      R"({"system":"s","prompt":"a","completion":"b c"})",
      R"({"system":"s","question":"a","answer":"b c"})"};
  struct Case {
    const char *preset, *tokenizer, *begin, *end, *marked;
  };
  const Case cases[] = {
      {"qwen2.5", "qwen2", "", "<|im_end|>",
       "<|im_start|>·system·\n·s·<|im_end|>·\n·<|im_start|>·user·\n·a·<|im_end|>·\n·"
       "<|im_start|>·assistant·\n·⟦b· c·<|im_end|>⟧·\n"},
      {"smollm2", "smollm2", "<|im_start|>", "<|im_end|>",
       "<|im_start|>·system·\n·s·<|im_end|>·\n·<|im_start|>·user·\n·a·<|im_end|>·\n·"
       "<|im_start|>·ass·istant·\n·⟦b· c·<|im_end|>⟧·\n"},
      // "<s> [INST] s\n\na [/INST] b c</s>"; a token alone is decoded without its first blank, and
      // behind <s> there is one of nothing else.
      {"mistral", "mixtral", "<s>", "</s>",
       "<s>··[·INST·]·s·\n·\n·a·[·/·INST·]·⟦b·c·</s>⟧"},
      {"olmoe", "gpt2", "<|endoftext|>", "<|endoftext|>",
       "<|endoftext|>·<·|·system·|·>·\n·s·\n·<·|·user·|·>·\n·a·\n·<·|·ass·istant·|·>·\n·"
       "⟦b· c·<|endoftext|>⟧·\n"},
  };
  for (const auto& [preset, name, begin, end, marked] : cases) {
    const Tokenizer tokenizer = open(name);
    ExampleOptions options;
    options.chat.preset = find_chat_preset(preset);
    options.chat.special = {begin, end};
    for (const std::string& row : rows) {
      const Collector got = read(row, tokenizer, options);
      ASSERT_EQ(got.examples.size(), 1u);
      const Example& example = got.examples[0];
      std::string shown;
      for (size_t i = 0; i < example.tokens.size(); ++i) {
        const bool trained = example.weights[i] > 0;
        const bool before = i > 0 && example.weights[i - 1] > 0;
        const bool behind = i + 1 < example.tokens.size() && example.weights[i + 1] > 0;
        if (i > 0) shown += "·";
        if (trained && !before) shown += "⟦";
        shown += tokenizer.decode({&example.tokens[i], 1}, false);
        if (trained && !behind) shown += "⟧";
      }
      EXPECT_EQ(shown, marked) << preset << ", " << row;
    }
  }
}

}  // namespace
}  // namespace pagoda
