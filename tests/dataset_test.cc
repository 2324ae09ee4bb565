#include "data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/random.h"
#include "data/text_source.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

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
    return TokenFile::open_or_create(dir_.file("tokens.bin"), paths, tokenizer_, {});
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
    EXPECT_FALSE(std::filesystem::exists(dir_.file("tokens.bin")));
    EXPECT_FALSE(std::filesystem::exists(dir_.file("tokens.bin.tmp")));
  }

  TempDir dir_;
  const Tokenizer tokenizer_;
};

TEST_F(DatasetTest, RowsTargetsPositionsAndBorders) {
  // Stream: a b c E | d E | e f g h i E   (12 tokens; the second row begins inside no document)
  const auto path =
      text("d.jsonl", "{\"text\":\"abc\"}\n\n{\"text\":\"d\"}\r\n{\"text\":\"efghi\"}");
  const Dataset data = dataset({path}, 5, RowOrder::kInOrder);
  EXPECT_EQ(data.num_rows(), 2);
  EXPECT_EQ(data.file().num_tokens(), 12);
  EXPECT_EQ(data.file().num_documents(), 3);
  const Microbatch batch = data.microbatch(0, 2).value();
  const int32_t E = 256;
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{'a', 'b', 'c', E, 'd', E, 'e', 'f', 'g', 'h'}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{'b', 'c', E, -1, E, -1, 'f', 'g', 'h', 'i'}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 3, 0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(batch.document_start, (std::vector<int32_t>{0, 4, 5, 6, 10}));
  EXPECT_EQ(batch.weights, (std::vector<float>{1, 1, 1, 0, 1, 0, 1, 1, 1, 1}));
}

TEST_F(DatasetTest, TheLastTokenOfTheStreamHasNoTarget) {
  const Dataset data = dataset({text("a.txt", "xyz")}, 2, RowOrder::kInOrder);
  EXPECT_EQ(data.num_rows(), 2);
  EXPECT_EQ(data.microbatch(1, 1)->targets, (std::vector<int32_t>{256, -1}));
}

TEST_F(DatasetTest, PlainTextIsOneDocumentOfAnyCharacters) {
  std::string bytes;
  for (int i = 0; i < 128; ++i) bytes += static_cast<char>(i);
  const Dataset data = dataset({text("a.txt", bytes), text("b.txt", "")}, 130, RowOrder::kInOrder);
  const Microbatch batch = data.microbatch(0, 1).value();
  for (int i = 0; i < 128; ++i) EXPECT_EQ(batch.tokens[i], i);
  EXPECT_EQ(batch.tokens[128], 256);
  EXPECT_EQ(batch.tokens[129], 256);  // the empty document
  EXPECT_EQ(batch.document_start, (std::vector<int32_t>{0, 129, 130}));
}

// A random collection against a stream built here in memory.
TEST_F(DatasetTest, MatchesTheStreamForRandomDocuments) {
  const uint64_t seed = 11;
  std::vector<int32_t> stream;
  std::set<size_t> starts;
  std::string lines;
  for (uint64_t d = 0; d < 400; ++d) {
    const auto length = philox(seed, RandomPurpose::kTest, d, 0)[0] % 60;
    std::string document;
    for (uint64_t i = 0; i < length; ++i) {
      document += static_cast<char>('a' + philox(seed, RandomPurpose::kTest, d, i + 1)[0] % 26);
    }
    lines += "{\"text\":\"" + document + "\"}\n";
    starts.insert(stream.size());
    stream.insert(stream.end(), document.begin(), document.end());
    stream.push_back(256);
  }
  const int64_t length = 37;
  const Dataset data = dataset({text("r.jsonl", lines)}, length, RowOrder::kInOrder);
  ASSERT_EQ(data.num_rows(), static_cast<int64_t>(stream.size()) / length);
  for (int64_t r = 0; r < data.num_rows(); ++r) {
    const Microbatch batch = data.microbatch(static_cast<uint64_t>(r), 1).value();
    std::vector<int32_t> borders;
    int32_t position = 0;
    for (int64_t i = 0; i < length; ++i) {
      const size_t at = static_cast<size_t>(r * length + i);
      if (i == 0 || starts.count(at)) borders.push_back(static_cast<int32_t>(i)), position = 0;
      ASSERT_EQ(batch.tokens[i], stream[at]) << "seed " << seed << " row " << r << " token " << i;
      ASSERT_EQ(batch.positions[i], position++);
      ASSERT_EQ(batch.targets[i], stream[at] == 256 ? -1 : stream[at + 1]);
    }
    borders.push_back(static_cast<int32_t>(length));
    ASSERT_EQ(batch.document_start, borders) << "row " << r;
  }
}

// Rows of these tests are "NNN.", so that a row tells which it is.
int row_number(const Microbatch& batch, int64_t row) {
  int number = 0;
  for (int64_t i = 0; i < 3; ++i) number = number * 10 + batch.tokens[row * 4 + i] - '0';
  return number;
}

TEST_F(DatasetTest, EveryRowOncePerEpoch) {
  const int rows = 100;
  std::string content;
  for (int r = 0; r < rows; ++r) content += strf("%03d.", r);
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
  const Dataset data = dataset({text("n.txt", content)}, 4, RowOrder::kInOrder);
  for (uint64_t p = 0; p < 25; ++p) {
    EXPECT_EQ(row_number(data.microbatch(p, 1).value(), 0), static_cast<int>(p % 10));
  }
}

TEST_F(DatasetTest, TooLittleTextIsRefused) {
  auto file = tokens({text("a.txt", "abc")});
  const auto result = Dataset::create(file.take(), {5, 0, RowOrder::kShuffled});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Exit::kBadData);
  EXPECT_NE(result.status().message().find("4 tokens"), std::string::npos);
}

TEST_F(DatasetTest, TokenFileIsReusedWhileNothingChanges) {
  const auto a = text("a.txt", "first text"), b = text("b.jsonl", "{\"text\":\"second\"}\n");
  auto made = tokens({a, b});
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made->reused());
  auto again = tokens({a, b});
  EXPECT_TRUE(again->reused());
  EXPECT_EQ(again->fingerprint(), made->fingerprint());
  auto swapped = tokens({b, a});
  EXPECT_FALSE(swapped->reused());
  EXPECT_NE(swapped->fingerprint(), made->fingerprint());
  std::filesystem::rename(a, dir_.file("moved.txt"));
  EXPECT_TRUE(tokens({b, dir_.file("moved.txt")})->reused()) << "paths do not count";
  text("moved.txt", "First text");
  EXPECT_FALSE(tokens({b, dir_.file("moved.txt")})->reused());
}

TEST_F(DatasetTest, DamagedTokenFileIsMadeAgain) {
  const auto path = text("a.txt", "some text to spoil");
  ASSERT_TRUE(tokens({path}).ok());
  const std::string good = get_file(dir_.file("tokens.bin"));
  for (size_t at = 0; at < good.size(); ++at) {
    std::string spoiled = good;
    spoiled[at] = static_cast<char>(spoiled[at] ^ 4);
    put_file(dir_.file("tokens.bin"), spoiled);
    auto file = tokens({path});
    ASSERT_TRUE(file.ok());
    ASSERT_FALSE(file->reused()) << "byte " << at;
  }
  put_file(dir_.file("tokens.bin"), good.substr(0, good.size() - 1));
  EXPECT_FALSE(tokens({path})->reused());
  put_file(dir_.file("tokens.bin.tmp"), "left by a killed run");
  put_file(dir_.file("tokens.bin"), "");
  EXPECT_FALSE(tokens({path})->reused());
  EXPECT_EQ(get_file(dir_.file("tokens.bin")), good);
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
  auto file = tokens({text("long.jsonl", line(64000000) + "\n")});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->num_tokens(), 64000000 - static_cast<int64_t>(frame.size()) + 1);
  std::filesystem::remove(dir_.file("tokens.bin"));
  expect_refused(text("long.jsonl", "\n" + line(64000001)), "long.jsonl:2: longer");
}

}  // namespace
}  // namespace pagoda
