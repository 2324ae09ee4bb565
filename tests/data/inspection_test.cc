// `pagoda data inspect`: the counts, against a second count made here, and the report.
#include "data/inspection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/random.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/process.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

class InspectionTest : public testing::Test {
 protected:
  InspectionTest() : tokenizer_(open_tokenizer()) {}
  Tokenizer open_tokenizer() {
    put_file(dir_.file("tokenizer.json"), byte_tokenizer_json());
    return Tokenizer::open(dir_.path()).value();
  }
  ProcessResult inspect(std::vector<std::string> words) {
    words.insert(words.begin(),
                 {PAGODA_BINARY, "data", "inspect", "--model.path", dir_.path()});
    return Process(words, dir_.file("inspect")).wait();
  }

  TempDir dir_;
  const Tokenizer tokenizer_;
};

Example example_of(const std::string& text, std::vector<float> weights, bool continues = false) {
  Example example;
  example.is_text = weights.empty();
  for (const char c : text) example.tokens.push_back(static_cast<unsigned char>(c));
  example.weights = std::move(weights);
  example.weights.resize(example.tokens.size(), 1.0f);
  example.continues = continues;
  return example;
}

TEST_F(InspectionTest, CountsMatchASecondCount) {
  const uint64_t seed = 23;
  const int64_t limit = 40;
  Inspection inspection(limit, TooLong::kTruncate, 2);
  std::vector<int64_t> lengths;
  std::map<std::string, int> texts;
  int64_t trained = 0, untrained = 0;
  inspection.file("a", RowKind::kMessages);
  for (uint64_t i = 0; i < 500; ++i) {
    if (i == 200) inspection.file("b", RowKind::kPrompt);
    const auto draw = philox(seed, RandomPurpose::kTest, i, 0);
    const std::string text(1 + draw[0] % 70, static_cast<char>('a' + draw[1] % 3));
    std::vector<float> weights(text.size(), 0.0f);
    for (size_t t = 0; t < text.size(); ++t) weights[t] = draw[2] % 4 == 0 ? 0.0f : t % 3 * 0.5f;
    const auto here = std::count_if(weights.begin() + 1, weights.end(), [](float w) {
      return w > 0;
    });
    trained += here;
    const auto row = std::min<int64_t>(limit, static_cast<int64_t>(weights.size()));
    untrained += std::count_if(weights.begin() + 1, weights.begin() + row,
                               [](float w) { return w > 0; }) == 0;
    lengths.push_back(static_cast<int64_t>(text.size()));
    ++texts[text];
    ASSERT_TRUE(inspection.example(example_of(text, weights)).ok());
  }
  std::sort(lengths.begin(), lengths.end());
  const Inspection::File total = inspection.total();
  EXPECT_EQ(total.examples, 500) << "seed " << seed;
  EXPECT_EQ(total.trained_tokens, trained);
  EXPECT_EQ(total.untrained, untrained);
  EXPECT_EQ(total.longest, lengths.back());
  EXPECT_EQ(total.longer, std::count_if(lengths.begin(), lengths.end(),
                                        [&](int64_t length) { return length > limit; }));
  EXPECT_EQ(inspection.percentile(50), lengths[249]);
  EXPECT_EQ(inspection.percentile(90), lengths[449]);
  EXPECT_EQ(inspection.percentile(99), lengths[494]);
  EXPECT_EQ(inspection.duplicates().examples, 500 - static_cast<int64_t>(texts.size()));
  int64_t in_buckets = 0;
  for (const Inspection::Bucket& bucket : inspection.histogram()) {
    in_buckets += bucket.examples;
    EXPECT_EQ(bucket.examples, std::count_if(lengths.begin(), lengths.end(), [&](int64_t length) {
                return length >= bucket.from && length <= bucket.to;
              }));
  }
  EXPECT_EQ(in_buckets, 500);
  EXPECT_EQ(inspection.files()[0].examples, 200);
  EXPECT_EQ(inspection.shown().size(), 2u);
}

TEST_F(InspectionTest, ADocumentInPiecesIsOneExample) {
  Inspection inspection(4, TooLong::kTruncate, 1);
  inspection.file("t", RowKind::kText);
  ASSERT_TRUE(inspection.example(example_of("abc", {}, true)).ok());
  ASSERT_TRUE(inspection.example(example_of("de", {}, false)).ok());
  ASSERT_TRUE(inspection.example(example_of("f", {}, false)).ok());
  EXPECT_EQ(inspection.total().examples, 2);
  EXPECT_EQ(inspection.total().tokens, 6);
  EXPECT_EQ(inspection.total().trained_tokens, 4) << "nothing predicts the first of a document";
  EXPECT_EQ(inspection.total().longer, 1);
  ASSERT_EQ(inspection.shown().size(), 1u);
  EXPECT_EQ(marked_text(inspection.shown()[0].example, tokenizer_, false), "⟦abcde⟧");
}

// Dataset does with long examples what the report says about the same rows.
TEST_F(InspectionTest, LongExamplesAreSaidToBecomeWhatTheyBecome) {
  const std::string rows = dir_.file("rows.jsonl");
  const auto row = [](size_t asked, size_t answered, const char* more = "") {
    return strf(R"({"messages":[{"role":"user","content":"%s"},)"
                R"({"role":"assistant","content":"%s"%s}]})" "\n",
                std::string(asked, 'q').c_str(), std::string(answered, 'a').c_str(), more);
  };
  // Fits; long; long, with an answer behind the end of a row; never trained.
  put_file(rows, row(4, 4) + row(4, 200) + row(5, 300) + row(200, 4) +
                     row(4, 4, R"(,"weight":0)"));
  const std::pair<const char*, TooLong> choices[] = {
      {"truncate", TooLong::kTruncate}, {"drop", TooLong::kDrop}, {"error", TooLong::kError}};
  const char* const lines[] = {"3 longer than data.sequence_len = 100: 2 truncated, 1 left out\n",
                               "3 longer than data.sequence_len = 100: 3 dropped\n",
                               "3 longer than data.sequence_len = 100: 3 refused when training "
                               "starts\n"};
  for (size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(choices[i].first);
    const ProcessResult shown =
        inspect({"--data.path", rows, "--data.chat_template", "chatml", "--data.sequence_len",
                 "100", "--data.too_long", choices[i].first});
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_NE(shown.out.find(lines[i]), std::string::npos) << shown.out;
    ExampleOptions options;
    options.chat.preset = find_chat_preset("chatml");
    auto file = TokenFile::open_or_create(dir_.file("cache"), {rows}, tokenizer_, options);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto dataset = Dataset::create(
        file.take(), {.sequence_len = 100, .seed = 1, .too_long = choices[i].second});
    EXPECT_EQ(dataset.ok(), choices[i].second != TooLong::kError);
    if (!dataset.ok()) continue;
    const Dataset::Counts& counts = dataset.value().counts();
    EXPECT_EQ(counts.truncated, choices[i].second == TooLong::kTruncate ? 2 : 0);
    EXPECT_EQ(counts.dropped, choices[i].second == TooLong::kDrop ? 3 : 0);
    EXPECT_EQ(counts.untrained, choices[i].second == TooLong::kDrop ? 1 : 2);
    const std::string left_out = strf("no token that is kept is trained: %lld examples",
                                      (long long)counts.untrained);
    EXPECT_NE(shown.out.find(left_out), std::string::npos) << shown.out;
  }
  // A conversation is no text where everything is trained.
  const ProcessResult all = inspect({"--data.path", rows, "--data.chat_template", "chatml",
                                     "--data.sequence_len", "100", "--data.train_on", "all"});
  EXPECT_NE(all.out.find("= 100: 3 truncated\n"), std::string::npos) << all.out;
}

TEST_F(InspectionTest, MarkedTextIsSafeForATerminal) {
  const Example example = example_of("a\x1b[31m\n\xFF\xE4\xBD\xA0z!?", {0, 0, 0, 0, 0, 0, 0, 1});
  EXPECT_EQ(marked_text(example, tokenizer_, false), "a\\x1b[31m\n⟦\uFFFD你z!?⟧");
  EXPECT_EQ(marked_text(example_of("abc", {0, 0.5f, 1}), tokenizer_, false), "a⟦b⟧*0.5⟦c⟧");
  EXPECT_EQ(marked_text(example_of("ab", {0, 1}), tokenizer_, true),
            "\033[2ma\033[0m\033[32mb\033[0m");
  EXPECT_EQ(marked_text(example_of("\n\n", {}), tokenizer_, false), "⟦\n\n⟧");
}

TEST_F(InspectionTest, TheCommand) {
  const std::string chat = dir_.file("chat.jsonl"), text = dir_.file("text.txt");
  const std::string row = R"({"messages":[{"role":"user","content":"a"},)"
                          R"({"role":"assistant","content":"b"}]})";
  put_file(chat, row + "\n" + row + "\n");
  put_file(text, "some text");
  const ProcessResult shown = inspect({"--data.path", chat, "--data.path", text, "--rows", "1",
                                       "--data.chat_template", "chatml"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  for (const char* part :
       {"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>⟧\n",
        "chat template: chatml", "chat.jsonl (messages): 2 examples, 126 tokens, 22 trained",
        "text.txt (text): 1 examples, 10 tokens, 9 trained", "duplicates: 1, the first is ",
        "median 63"}) {
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << "\n" << shown.out;
  }
  const ProcessResult json = inspect({"--data.path", chat, "--data.chat_template", "chatml",
                                      "--data.sequence_len", "32", "--json"});
  EXPECT_EQ(json.code, 0) << json.err;
  const Json root = Json::parse(json.out);
  EXPECT_EQ(root["total"]["longer"], 2);
  EXPECT_EQ(root["total"]["trained_tokens"], 22);
  EXPECT_EQ(root["shown"][0]["parts"][1]["text"], "b<|im_end|>");
  EXPECT_EQ(root["duplicates"]["examples"], 1);
}

TEST_F(InspectionTest, AnswersWithoutAnEndAreCounted) {
  const std::string chat = dir_.file("chat.jsonl");
  put_file(chat, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                 R"({"role":"user","content":"c"},{"role":"assistant","content":"d"}]})");
  const std::string line =
      "trained answers without a special token at their end, behind which a model may go on "
      "writing: 2\n";
  for (const bool ended : {false, true}) {
    put_file(dir_.file("chat_template.jinja"),
             strf("{%% for m in messages %%}{{ m.role }}:{{ m.content }}%s\n{%% endfor %%}",
                  ended ? "<|endoftext|>" : ""));
    const ProcessResult shown = inspect({"--data.path", chat});
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_EQ(shown.out.find(line) == std::string::npos, ended) << shown.out;
    const ProcessResult json = inspect({"--data.path", chat, "--json"});
    EXPECT_EQ(Json::parse(json.out)["total"]["unended"], ended ? 0 : 2);
  }
}

TEST_F(InspectionTest, TheCommandRefuses) {
  const std::string chat = dir_.file("chat.jsonl");
  put_file(chat, R"({"messages":[{"role":"user","content":"a"}]})");
  const auto refused = [&](std::vector<std::string> words, int code, const std::string& part) {
    const ProcessResult result = inspect(std::move(words));
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_NE(result.error_line().find(part), std::string::npos) << result.err;
  };
  refused({}, 2, "name --data.path");
  refused({"--data.path", chat, "--rows", "-1"}, 2, "--rows");
  refused({"--data.path", chat, "--data.train_on", "none"}, 2, "data.train_on");
  refused({"--data.path", chat}, 65, "no assistant message");
  refused({"--data.path", chat, "--json"}, 65, "no assistant message");
  refused({"--data.path", dir_.file("absent.jsonl")}, 66, "cannot open");
  put_file(chat, R"({"messages":[{"role":"user","content":"a"},)"
                 R"({"role":"assistant","content":"b","weight":0}]})");
  const ProcessResult result = inspect({"--data.path", chat, "--data.chat_template", "chatml"});
  EXPECT_EQ(result.code, 65);
  EXPECT_NE(result.err.find("no token of its 1 rows is trained"), std::string::npos);
  EXPECT_NE(result.out.find("b<|im_end|>"), std::string::npos) << "what was read is shown";
}

}  // namespace
}  // namespace pagoda
