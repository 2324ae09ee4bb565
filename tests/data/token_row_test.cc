// Rows that are tokens already, and what is wrong with some.
#include "data/token_row.h"

#include <gtest/gtest.h>

#include "data/example.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

Result<TokenRow> parse(const std::string& row, const std::string& names = "") {
  return parse_token_row(Json::parse(row), RowFields::parse(names).value(), 257);
}

TEST(TokenRow, LabelsSayWhatIsTrained) {
  auto row = parse(R"({"input_ids": [5, 6, 7, 256], "labels": [-100, -100, 7, 256]})");
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_EQ(row->tokens, (std::vector<uint32_t>{5, 6, 7, 256}));
  EXPECT_EQ(row->weights, (std::vector<float>{0, 0, 1, 1}));
  EXPECT_FALSE(row->is_text);
}

TEST(TokenRow, OrAMask) {
  auto row = parse(R"({"input_ids": [5, 6, 7], "assistant_masks": [0, 1, 1], "labels": null})",
                   "completion_mask=assistant_masks");
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_EQ(row->weights, (std::vector<float>{0, 1, 1}));
  row = parse(R"({"input_ids": [5, 6, 7], "completion_mask": [false, true, false]})");
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_EQ(row->weights, (std::vector<float>{0, 1, 0}));
}

TEST(TokenRow, PaddingIsLeftOut) {
  auto row = parse(R"({"input_ids": [0, 5, 6, 0], "attention_mask": [0, 1, 1, 0],
                       "labels": [-100, 5, 6, -100]})");
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_EQ(row->tokens, (std::vector<uint32_t>{5, 6}));
  EXPECT_EQ(row->weights, (std::vector<float>{1, 1}));
}

TEST(TokenRow, WithoutLabelsItIsAText) {
  auto row = parse(R"({"input_ids": [5, 6], "token_type_ids": [0, 0]})");
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_TRUE(row->is_text);
  EXPECT_EQ(row->weights, (std::vector<float>{1, 1}));
}

TEST(TokenRow, WhatIsWrongIsNamed) {
  struct Wrong {
    const char *row, *part;
  };
  for (const Wrong& wrong : {
           Wrong{R"({"input_ids": []})", "has no tokens"},
           Wrong{R"({"labels": [1]})", "has no tokens"},
           Wrong{R"({"input_ids": "5 6"})", "is no list"},
           Wrong{R"({"input_ids": [5, 6.5]})", "\"input_ids\" 1 is no whole number"},
           Wrong{R"({"input_ids": [5, 257]})",
                 "token 1 is 257, and the tokenizer has tokens from 0 "
                 "to 256"},
           Wrong{R"({"input_ids": [-1]})", "token 0 is -1"},
           Wrong{R"({"input_ids": [18446744073709551615]})", "token 0 is -1"},
           Wrong{R"({"input_ids": [5, 6], "labels": [5]})", "has 1 numbers, and the row 2 tokens"},
           Wrong{R"({"input_ids": [5, 6], "labels": [6, -100]})", "shifted labels are not read"},
           Wrong{R"({"input_ids": [5, 6], "labels": [5, 6], "completion_mask": [1, 1]})",
                 "keep one"},
           Wrong{R"({"input_ids": [5], "completion_mask": [2]})", "2 and not 0 or 1"},
           Wrong{R"({"input_ids": [5], "attention_mask": [0]})", "nothing but padding"},
           Wrong{R"([5, 6])", "has no tokens"},
       }) {
    const Status refused = parse(wrong.row).status();
    EXPECT_EQ(refused.code(), Exit::kBadData) << wrong.row;
    EXPECT_NE(refused.message().find(wrong.part), std::string::npos) << refused.message();
  }
}

class Collected : public ExampleSink {
 public:
  Status example(Example&& example) override {
    examples.push_back(std::move(example));
    return Status();
  }
  std::vector<Example> examples;
};

// A file of them: nothing is added to a row, and no chat template is asked for.
TEST(TokenRow, FilesBecomeExamples) {
  TempDir dir;
  put_file(dir.file("rows.jsonl"), R"({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}
{"input_ids": [8, 9], "labels": [8, 9]}
)");
  put_file(dir.file("tokenizer.json"), byte_tokenizer_json());
  const Tokenizer tokenizer = std::move(Tokenizer::open(dir.path()).value());
  Collected sink;
  const Status read = read_examples({dir.file("rows.jsonl")}, tokenizer, ExampleOptions(), sink);
  ASSERT_TRUE(read.ok()) << read.message();
  ASSERT_EQ(sink.examples.size(), 2u);
  EXPECT_EQ(sink.examples[0].tokens, (std::vector<uint32_t>{5, 6, 7}));
  EXPECT_EQ(sink.examples[0].weights, (std::vector<float>{0, 1, 1}));
  EXPECT_EQ(sink.examples[1].weights, (std::vector<float>{1, 1}));
  put_file(dir.file("mixed.jsonl"), "{\"input_ids\": [5, 6]}\n{\"text\": \"a\"}\n");
  const Status mixed = read_examples({dir.file("mixed.jsonl")}, tokenizer, ExampleOptions(), sink);
  EXPECT_NE(mixed.message().find("a row of kind text in a file whose first row is of kind tokens"),
            std::string::npos)
      << mixed.message();
  put_file(dir.file("masked.jsonl"), "{\"input_ids\": [5, 6], \"labels\": [5, -100]}\n");
  const Status masked =
      read_examples({dir.file("masked.jsonl")}, tokenizer, ExampleOptions(), sink);
  EXPECT_NE(masked.message().find("no token of its 1 rows is trained"), std::string::npos)
      << "nothing predicts the first token: " << masked.message();
}

}  // namespace
}  // namespace pagoda
