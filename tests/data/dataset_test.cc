#include "data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include "tests/testing/files.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/token_cache.h"

namespace pagoda {
namespace {

class DatasetTest : public testing::Test {
 protected:
  DatasetTest() : tokenizer_(open_tokenizer()) {}

  Tokenizer open_tokenizer() {
    put_file(dir_.file("tokenizer.json"), byte_tokenizer_json());
    return Tokenizer::open(dir_.path()).value();
  }
  std::string text(const std::string& name, const std::string& content) {
    put_file(dir_.file(name), content);
    return dir_.file(name);
  }
  Result<TokenFile> tokens(const std::vector<std::string>& paths) {
    return TokenFile::open_or_create(dir_.file("tokens.bin"), paths, tokenizer_, ExampleOptions());
  }
  Dataset dataset(const std::vector<std::string>& paths, int64_t sequence_len, RowOrder order,
                  uint64_t seed = 5) {
    auto file = tokens(paths);
    CHECK(file.ok(), "%s", file.status().message().c_str());
    auto result = Dataset::create(file.take(), {sequence_len, seed, order});
    CHECK(result.ok(), "%s", result.status().message().c_str());
    return result.take();
  }
  void expect_refused(const std::string& path, const std::string& part) {
    const Status status = tokens({path}).status();
    ASSERT_FALSE(status.ok()) << "accepted, expected: " << part;
    EXPECT_EQ(status.code(), Exit::kBadData) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    for (const std::string& name : files_in(dir_.path())) {
      EXPECT_FALSE(name.starts_with("tokens.bin")) << name;
    }
  }

  TempDir dir_;
  const Tokenizer tokenizer_;
};

TEST_F(DatasetTest, RowsTargetsPositionsAndBorders) {
  // Documents: abcE, dE, E (nothing to train), efghiE. Rows of 7: the longest with nothing that
  // fits beside it; then abcE with dE.
  const auto path =
      text("d.jsonl", "{\"text\":\"abc\"}\n\n{\"text\":\"d\"}\r\n{\"text\":\"\"}\n"
                      "{\"text\":\"efghi\"}");
  const Dataset data = dataset({path}, 7, RowOrder::kInOrder);
  EXPECT_EQ(data.num_rows(), 2);
  EXPECT_EQ(data.file().num_tokens(), 13);
  EXPECT_EQ(data.file().num_documents(), 4);
  EXPECT_EQ(data.counts().untrained, 1);
  const Microbatch batch = data.microbatch(0, 2).value();
  const int32_t E = 256;
  EXPECT_EQ(batch.tokens,
            (std::vector<int32_t>{'a', 'b', 'c', E, 'd', E, 0, 'e', 'f', 'g', 'h', 'i', E, 0}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{'b', 'c', E, -1, E, -1, -1, 'f', 'g', 'h', 'i', E,
                                                 -1, -1}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 0, 0, 1, 2, 3, 4, 5, 0}));
  EXPECT_EQ(batch.document_start, (std::vector<int32_t>{0, 4, 6, 7, 13, 14}));
  EXPECT_EQ(batch.weights, (std::vector<float>{1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(batch.padding, (std::vector<uint8_t>{0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_DOUBLE_EQ(data.padding_share(), 2.0 / 14.0);
}

// Cut into rows, a text still has every token but its first as a target once: the target of a
// piece's last token is the first of the next piece.
TEST_F(DatasetTest, ALongTextIsCutAndLosesNoTarget) {
  for (const size_t length : {9u, 10u, 11u, 12u}) {  // and end-of-text
    std::string letters;
    for (size_t i = 0; i < length; ++i) letters += static_cast<char>('a' + i);
    const Dataset data = dataset({text("a.txt", letters)}, 5, RowOrder::kInOrder);
    EXPECT_EQ(data.counts().cut, 1);
    const Microbatch batch = data.microbatch(0, data.num_rows()).value();
    std::vector<int32_t> targets, want(letters.begin() + 1, letters.end());
    want.push_back(256);
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      if (batch.weights[i] > 0) targets.push_back(batch.targets[i]);
      EXPECT_EQ(batch.weights[i] > 0, batch.targets[i] >= 0);
    }
    EXPECT_EQ(targets, want) << length;
    // A rest of one token would have nothing to predict and makes no row.
    EXPECT_EQ(data.num_rows(), length == 10 ? 2 : length == 9 ? 2 : 3) << length;
    EXPECT_EQ(batch.positions[5], 0) << "a piece is a document of its own";
  }
}

TEST_F(DatasetTest, PlainTextIsOneDocumentOfAnyCharacters) {
  std::string bytes;
  for (int i = 0; i < 128; ++i) bytes += static_cast<char>(i);
  const std::string rows = R"({"text":""})" "\n" R"({"text":"x"})";
  const Dataset data =
      dataset({text("a.txt", bytes), text("b.jsonl", rows)}, 130, RowOrder::kInOrder);
  EXPECT_EQ(data.counts().untrained, 1) << "the empty document has nothing to train";
  const Microbatch batch = data.microbatch(0, 1).value();
  for (int i = 0; i < 128; ++i) EXPECT_EQ(batch.tokens[i], i);
  EXPECT_EQ(batch.tokens[128], 256);
  EXPECT_EQ(batch.padding[129], 1);
  EXPECT_EQ(batch.document_start, (std::vector<int32_t>{0, 129, 130}));
}

// ---- documents with masked tokens ----

class MaskedDatasetTest : public testing::Test {
 protected:
  Result<Dataset> dataset(const std::vector<Example>& examples, const Dataset::Options& options) {
    auto file = make_cache(dir_.file(strf("tokens-%d.bin", ++files_)), examples);
    CHECK(file.ok(), "%s", file.status().message().c_str());
    return Dataset::create(file.take(), options);
  }
  // n tokens from `first` on, those in [begin, end) trained.
  static Example chat(uint32_t first, int64_t n, int64_t begin, int64_t end, float weight = 1) {
    Example example;
    for (int64_t i = 0; i < n; ++i) {
      example.tokens.push_back(first + static_cast<uint32_t>(i));
      example.weights.push_back(i >= begin && i < end ? weight : 0.0f);
    }
    return example;
  }

  TempDir dir_;
  int files_ = 0;
};

TEST_F(MaskedDatasetTest, WeightsAndTargetsFollowTheMask) {
  const Dataset data =
      std::move(dataset({chat(10, 4, 2, 4, 0.5f), chat(20, 3, 1, 2)}, {8}).value());
  const Microbatch batch = data.microbatch(0, 1).value();
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{10, 11, 12, 13, 20, 21, 22, 0}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{-1, 12, 13, -1, 21, -1, -1, -1}));
  EXPECT_EQ(batch.weights, (std::vector<float>{0, 0.5f, 0.5f, 0, 1, 0, 0, 0}));
  EXPECT_EQ(batch.document_start, (std::vector<int32_t>{0, 4, 7, 8}));
}

TEST_F(MaskedDatasetTest, TooLongIsTruncatedDroppedOrAnError) {
  const std::vector<Example> examples = {chat(10, 6, 2, 6), chat(20, 3, 1, 3), chat(30, 9, 5, 9),
                                         chat(40, 5, 3, 5), chat(50, 4, 0, 0)};
  Dataset::Options options{5, 0, RowOrder::kInOrder, TooLong::kTruncate};
  const Dataset cut = std::move(dataset(examples, options).value());
  EXPECT_EQ(cut.counts().truncated, 1);
  EXPECT_EQ(cut.counts().untrained, 2) << "one trained only behind the border, one nowhere";
  EXPECT_EQ(cut.packing().num_tokens(), 5 + 3 + 5);
  const Microbatch first = cut.microbatch(0, 1).value();
  EXPECT_EQ(first.tokens, (std::vector<int32_t>{10, 11, 12, 13, 14}));
  EXPECT_EQ(first.targets, (std::vector<int32_t>{-1, 12, 13, 14, -1})) << "15 is cut off";
  const std::string line = dataset_text(cut);
  EXPECT_NE(line.find("1 longer than a row, truncated; 2 without"), std::string::npos) << line;
  options.too_long = TooLong::kDrop;
  const Dataset dropped = std::move(dataset(examples, options).value());
  EXPECT_EQ(dropped.counts().dropped, 2) << "also one trained only behind the border";
  EXPECT_EQ(dropped.counts().untrained, 1);
  EXPECT_EQ(dropped.packing().num_tokens(), 3 + 5);
  options.too_long = TooLong::kError;
  const Status refused = dataset(examples, options).status();
  EXPECT_EQ(refused.code(), Exit::kBadData);
  EXPECT_NE(refused.message().find("example 1 has 6 tokens"), std::string::npos)
      << refused.message();
  options.sequence_len = 9;
  EXPECT_TRUE(dataset(examples, options).ok());
}

// A conversation all of whose tokens are trained is no text: its parts need each other.
TEST_F(MaskedDatasetTest, AConversationTrainedWhollyIsNotCut) {
  const std::vector<Example> examples = {chat(10, 12, 0, 12), chat(30, 4, 0, 4)};
  Dataset::Options options{5, 0, RowOrder::kInOrder, TooLong::kError};
  EXPECT_EQ(dataset(examples, options).status().code(), Exit::kBadData);
  options.too_long = TooLong::kDrop;
  EXPECT_EQ(dataset(examples, options)->packing().num_tokens(), 4);
  options.too_long = TooLong::kTruncate;
  const Dataset cut = std::move(dataset(examples, options).value());
  EXPECT_EQ(cut.counts().truncated, 1);
  EXPECT_EQ(cut.counts().cut, 0);
  EXPECT_EQ(cut.packing().num_tokens(), 5 + 4);
}

TEST_F(MaskedDatasetTest, NothingToTrainIsRefused) {
  const Status refused = dataset({chat(1, 5, 0, 0), chat(9, 1, 0, 1)}, {4}).status();
  EXPECT_EQ(refused.code(), Exit::kBadData);
  EXPECT_NE(refused.message().find("none of 2 examples"), std::string::npos) << refused.message();
  EXPECT_EQ(dataset({}, {4}).status().code(), Exit::kBadData);
}

Example random_document(uint64_t seed, uint32_t number, int64_t longest) {
  const uint64_t index = uint64_t{1000} * number;
  const int64_t count = 1 + random_below(seed, index, longest);
  const bool is_text = random_below(seed, index + 1, 2) == 0;
  Example example;
  example.is_text = is_text;
  for (int64_t i = 0; i < count; ++i) {
    example.tokens.push_back(number << 12 | static_cast<uint32_t>(i));
    const auto masked = static_cast<float>(random_below(seed, index + 2 + i / 5, 3));
    example.weights.push_back(is_text ? 1.0f : masked);
  }
  return example;
}

// Random documents whose tokens say where they are from: one epoch has every trained token of every
// document once as a target, with its weight, behind its own predecessor; every row has something
// to train; positions and borders are right.
TEST_F(MaskedDatasetTest, EveryTrainedTokenOnceAndOnlyItsOwnDocument) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const int64_t length = 2 + random_below(seed, 77, 60);
    std::vector<Example> examples;
    for (uint32_t d = 0; d < 300; ++d) examples.push_back(random_document(seed, d, 2 * length));
    const Dataset data = std::move(dataset(examples, {length, seed}).value());
    std::map<int32_t, float> trained;
    for (int64_t r = 0; r < data.num_rows(); ++r) {
      const Microbatch row = data.microbatch(static_cast<uint64_t>(r), 1).value();
      double weight = 0;
      for (int64_t i = 0; i < length; ++i) {
        const bool starts = std::count(row.document_start.begin(), row.document_start.end(), i) > 0;
        ASSERT_EQ(row.positions[i], starts ? 0 : row.positions[i - 1] + 1) << "seed " << seed;
        ASSERT_TRUE(starts || row.padding[i] == row.padding[i - 1]) << "padding has a border";
        ASSERT_TRUE(starts || row.padding[i] || row.tokens[i] == row.tokens[i - 1] + 1);
        ASSERT_EQ(row.targets[i] >= 0, row.weights[i] > 0);
        if (row.targets[i] < 0) continue;
        ASSERT_EQ(row.padding[i], 0);
        ASSERT_EQ(row.targets[i], row.tokens[i] + 1) << "another document's token";
        ASSERT_TRUE(trained.emplace(row.targets[i], row.weights[i]).second) << "trained twice";
        weight += row.weights[i];
      }
      ASSERT_GT(weight, 0) << "seed " << seed << " row " << r;
    }
    std::map<int32_t, float> want;
    for (const Example& example : examples) {
      for (size_t i = 1; i < example.tokens.size(); ++i) {
        const bool kept = example.is_text || static_cast<int64_t>(i) < length;
        if (!kept || example.weights[i] == 0) continue;
        want.emplace(static_cast<int32_t>(example.tokens[i]), example.weights[i]);
      }
    }
    ASSERT_EQ(trained, want) << "seed " << seed << " rows of " << length;
  }
}

// Rows of these tests are the text "NNN.", so that a row tells which it is.
int row_number(const Microbatch& batch, int64_t row) {
  int number = 0;
  for (int64_t i = 0; i < 3; ++i) number = number * 10 + batch.tokens[row * 4 + i] - '0';
  return number;
}

TEST_F(DatasetTest, EveryRowOncePerEpoch) {
  const int rows = 100;
  std::string content;
  for (int r = 0; r < rows; ++r) content += strf("%03d.", r);
  content.pop_back();  // so that end-of-text ends the last row
  const Dataset data = dataset({text("n.txt", content)}, 4, RowOrder::kShuffled);
  ASSERT_EQ(data.num_rows(), rows);
  std::vector<std::vector<int>> epochs(4);
  // Microbatches of 7 rows, so that some lie across the end of an epoch.
  for (uint64_t position = 0; position < 4 * rows; position += 7) {
    const Microbatch batch = data.microbatch(position, 7).value();
    for (int64_t r = 0; r < 7; ++r) {
      const uint64_t p = position + static_cast<uint64_t>(r);
      if (p < 4 * rows) epochs[p / rows].push_back(row_number(batch, r));
    }
  }
  for (size_t e = 0; e < epochs.size(); ++e) {
    std::vector<int> sorted = epochs[e], all(rows);
    std::sort(sorted.begin(), sorted.end());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all) << "epoch " << e;
    EXPECT_NE(epochs[e], all) << "epoch " << e << " is not shuffled";
    EXPECT_TRUE(e == 0 || epochs[e] != epochs[e - 1]) << "epoch " << e;
  }
  // A position says everything: asked again, one row at a time, it is the same row.
  for (uint64_t p = 0; p < 2 * rows; p += 13) {
    EXPECT_EQ(row_number(data.microbatch(p, 1).value(), 0), epochs[p / rows][p % rows]);
  }
  const Dataset other = dataset({dir_.file("n.txt")}, 4, RowOrder::kShuffled, 6);
  std::vector<int> first;
  for (uint64_t p = 0; p < rows; ++p)
    first.push_back(row_number(other.microbatch(p, 1).value(), 0));
  EXPECT_NE(first, epochs[0]) << "another seed, another order";
}

TEST_F(DatasetTest, EvaluationIsInOrder) {
  std::string content;
  for (int r = 0; r < 10; ++r) content += strf("%03d.", r);
  content.pop_back();
  const Dataset data = dataset({text("n.txt", content)}, 4, RowOrder::kInOrder);
  ASSERT_EQ(data.num_rows(), 10);
  for (uint64_t p = 0; p < 25; ++p) {
    EXPECT_EQ(row_number(data.microbatch(p, 1).value(), 0), static_cast<int>(p % 10));
  }
}

TEST_F(DatasetTest, ALittleTextMakesAPaddedRowAndNoTextIsRefused) {
  const Dataset data = dataset({text("a.txt", "abc")}, 16, RowOrder::kShuffled);
  EXPECT_EQ(data.num_rows(), 1);
  EXPECT_DOUBLE_EQ(data.padding_share(), 0.75);
  EXPECT_EQ(tokens({text("a.txt", "abc"), text("b.txt", "")}).status().code(), Exit::kBadData);
}

// Another sequence length packs anew but tokenises nothing.
TEST_F(DatasetTest, TheCacheServesEverySequenceLength) {
  const auto a = text("a.txt", "first text"), b = text("b.jsonl", "{\"text\":\"second\"}\n");
  EXPECT_FALSE(tokens({a, b})->reused());
  // 11 and 7 tokens, less those that would be pieces of one.
  for (const auto& [length, packed] : std::map<int64_t, int64_t>{{2, 16}, {5, 17}, {64, 18}}) {
    auto again = tokens({a, b});
    EXPECT_TRUE(again->reused());
    EXPECT_EQ(Dataset::create(again.take(), {length})->packing().num_tokens(), packed);
  }
  EXPECT_FALSE(tokens({b, a})->reused());
}

TEST_F(DatasetTest, BadLinesAreRefusedByFileAndLine) {
  const std::string ok = "{\"text\":\"ok\"}\n";
  expect_refused(text("u.jsonl", ok + ok + "{\"text\":\"a\xFF\"}\n"),
                 "u.jsonl:3: byte 11: invalid UTF-8");
  expect_refused(text("u.jsonl", ok + "\n{\"text\":\"\xC0\xAF\"}"),
                 "u.jsonl:3: byte 10: invalid UTF-8");
  expect_refused(text("u.jsonl", ok + "{\"text\":\"\xED\xA0\x80\"}"),
                 "u.jsonl:2: byte 10: invalid UTF-8");
  expect_refused(text("u.jsonl", ok + "{\"text\":\"\xE2\x82"), "u.jsonl:2: byte 10: invalid UTF-8");
  expect_refused(text("j.jsonl", ok + "{\"text\":\"b\"\n" + ok), "j.jsonl:2: byte");
  expect_refused(text("j.jsonl", "{\"text\":\"\\ud800\"}"), "j.jsonl:1: byte");
  expect_refused(text("j.jsonl", "{\"text\":1}"), "j.jsonl:1: \"text\" is not a text");
  expect_refused(text("j.jsonl", "[\"text\"]"), "j.jsonl:1: the row is not an object");
  expect_refused(text("j.jsonl", "{\"text\":\"a\",\"text\":\"b\"}"), "j.jsonl:1: byte");
  expect_refused(text("j.jsonl", ok + std::string(70, '[')), "j.jsonl:2: byte");
  expect_refused(text("p.parquet", "x"), "must end in .txt");
  EXPECT_EQ(tokens({dir_.file("absent.txt")}).status().code(), Exit::kNoInput);
}

TEST_F(DatasetTest, LinesMayBeLongButNotEndless) {
  // Longer than several read blocks, and one byte over the limit.
  const std::string frame = "{\"text\":\"\"}";
  const auto line = [&](size_t bytes) {
    return "{\"text\":\"" + std::string(bytes - frame.size(), 'x') + "\"}";
  };
  if (!kUnderSanitizer) {  // it takes most of a minute there, and pieces of texts are no longer
    auto file = tokens({text("long.jsonl", line(64000000) + "\n")});
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->num_tokens(), 64000000 - static_cast<int64_t>(frame.size()) + 1);
    std::filesystem::remove(dir_.file("tokens.bin"));
  }
  expect_refused(text("long.jsonl", "\n" + line(64000001)), "long.jsonl:2: longer");
}

}  // namespace
}  // namespace pagoda
