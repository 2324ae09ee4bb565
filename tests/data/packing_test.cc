// Packing against a plain loop, against properties, and against rows written down.
#include "data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "base/bytes.h"
#include "tests/testing/token_cache.h"

namespace pagoda {
namespace {

using Rows = std::vector<std::vector<RowPiece>>;

Rows rows_of(const Packing& packing) {
  Rows rows;
  for (int64_t r = 0; r < packing.num_rows(); ++r) {
    rows.emplace_back(packing.row(r).begin(), packing.row(r).end());
  }
  return rows;
}

int64_t piece_tokens(const RowPiece& piece, const std::vector<int64_t>& lengths,
                     int64_t row_tokens) {
  return std::min(row_tokens, lengths[piece.document] - piece.number * row_tokens);
}

// Best-fit decreasing as its definition says, with a search over all rows for each piece.
Rows plain_best_fit(const std::vector<int64_t>& lengths, int64_t row_tokens) {
  struct Row {
    std::vector<RowPiece> pieces;
    int64_t room;
    int64_t last_put;
  };
  std::vector<Row> rows;
  std::vector<RowPiece> rests;
  for (uint32_t d = 0; d < lengths.size(); ++d) {
    for (uint32_t i = 0; i < lengths[d] / row_tokens; ++i) rows.push_back({{{d, i}}, 0, 0});
    if (lengths[d] % row_tokens > 0) {
      rests.push_back({d, static_cast<uint32_t>(lengths[d] / row_tokens)});
    }
  }
  std::stable_sort(rests.begin(), rests.end(), [&](const RowPiece& a, const RowPiece& b) {
    return lengths[a.document] % row_tokens > lengths[b.document] % row_tokens;
  });
  int64_t clock = 0;
  for (const RowPiece& piece : rests) {
    const int64_t need = lengths[piece.document] % row_tokens;
    Row* best = nullptr;
    for (Row& row : rows) {
      if (row.room < need) continue;
      const bool better = !best || row.room < best->room ||
                          (row.room == best->room && row.last_put > best->last_put);
      if (better) best = &row;
    }
    if (!best) best = &rows.emplace_back(Row{{}, row_tokens, 0});
    best->pieces.push_back(piece);
    best->room -= need;
    best->last_put = ++clock;
  }
  const auto before = [](const RowPiece& a, const RowPiece& b) {
    return std::pair(a.document, a.number) < std::pair(b.document, b.number);
  };
  Rows result;
  for (Row& row : rows) {
    std::sort(row.pieces.begin(), row.pieces.end(), before);
    result.push_back(row.pieces);
  }
  std::sort(result.begin(), result.end(), [&](const auto& a, const auto& b) {
    return before(a.front(), b.front());
  });
  return result;
}

TEST(Packing, FillsRowsBestFitFirst) {
  // Rows of 10. Rests longest first: 8 7 6 4 3 3 2; document 3 is longer than a row.
  const std::vector<int64_t> lengths = {6, 3, 0, 27, 4, 3, 2, 8, 10};
  const Packing packing(lengths, 10);
  const Rows want = {{{0, 0}, {4, 0}}, {{1, 0}, {3, 2}}, {{3, 0}}, {{3, 1}}, {{5, 0}},
                     {{6, 0}, {7, 0}}, {{8, 0}}};
  EXPECT_EQ(rows_of(packing), want);
  EXPECT_EQ(packing.num_tokens(), 63);
}

// The same numbers are in tools/reference_test.py.
TEST(Packing, RowsThatThePythonReferenceMakesToo) {
  const std::vector<int64_t> lengths = {5, 19, 3, 8, 1, 12, 2, 2, 7, 16, 3, 4, 40, 6};
  std::string text;
  for (const auto& row : rows_of(Packing(lengths, 16))) {
    for (const RowPiece& piece : row) text += strf("%u.%u ", piece.document, piece.number);
    text += "| ";
  }
  EXPECT_EQ(text,
            "0.0 2.0 4.0 6.0 7.0 10.0 | 1.0 | 1.1 8.0 13.0 | 3.0 12.2 | 5.0 11.0 | 9.0 | 12.0 | "
            "12.1 | ");
}

TEST(Packing, EqualsThePlainLoop) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const int64_t row_tokens = 1 + random_below(seed, 0, 40);
    const int64_t longest = 1 + random_below(seed, 1, 3 * row_tokens);
    std::vector<int64_t> lengths;
    const int64_t count = random_below(seed, 2, 120);
    for (int64_t i = 0; i < count; ++i) lengths.push_back(random_below(seed, 10 + i, longest + 1));
    ASSERT_EQ(rows_of(Packing(lengths, row_tokens)), plain_best_fit(lengths, row_tokens))
        << "seed " << seed << " rows of " << row_tokens;
  }
}

TEST(Packing, NothingGivesNoRows) {
  EXPECT_EQ(Packing({}, 8).num_rows(), 0);
  EXPECT_EQ(Packing(std::vector<int64_t>{0, 0}, 8).num_rows(), 0);
}

// A million documents: every token in one row, rows not overfull, few of them, in seconds and
// within the stated memory.
TEST(Packing, AMillionDocuments) {
  constexpr int64_t kRow = 2048, kDocuments = 1000000;
  std::vector<int64_t> lengths;
  int64_t tokens = 0;
  for (int64_t i = 0; i < kDocuments; ++i) {
    // Many short ones, some longer than a row.
    const int64_t scale = int64_t{4} << random_below(7, 2 * i, 10);
    lengths.push_back(1 + random_below(7, 2 * i + 1, scale));
    tokens += lengths.back();
  }
  const auto begin = std::chrono::steady_clock::now();
  const Packing packing(lengths, kRow);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  std::vector<int64_t> seen(lengths.size(), 0);
  int64_t pieces = 0;
  for (int64_t r = 0; r < packing.num_rows(); ++r) {
    int64_t used = 0;
    for (const RowPiece& piece : packing.row(r)) {
      used += piece_tokens(piece, lengths, kRow);
      seen[piece.document] += piece_tokens(piece, lengths, kRow);
      ++pieces;
    }
    ASSERT_GT(used, 0) << "row " << r;
    ASSERT_LE(used, kRow) << "row " << r;
  }
  EXPECT_EQ(seen, lengths);
  EXPECT_EQ(packing.num_tokens(), tokens);
  const double share = 1.0 - static_cast<double>(tokens) /
                                 static_cast<double>(packing.num_rows() * kRow);
  // Best-fit decreasing needs at most 11/9 of the best possible (Johnson 1973); with short
  // documents to fill gaps it is far nearer.
  EXPECT_LT(share, 0.001);
  EXPECT_LE(packing.memory_bytes(), 8 * (pieces + packing.num_rows() + 1));
  std::printf("%lld documents, %lld rows, %.4f %% padding, %.2f s\n", (long long)kDocuments,
              (long long)packing.num_rows(), 100 * share, spent.count());
}

}  // namespace
}  // namespace pagoda
