#include "tests/testing/data_use.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace pagoda {

void expect_each_once(const Dataset& data, const std::vector<RowsUsed>& steps,
                      uint64_t epochs) {
  const auto n = static_cast<uint64_t>(data.num_rows());
  std::vector<std::map<std::pair<uint32_t, uint32_t>, int>> used(epochs);
  uint64_t position = 0;
  for (const RowsUsed& step : steps) {
    ASSERT_EQ(step.first_row, static_cast<int64_t>(position)) << "a gap or rows used again";
    for (int64_t r = 0; r < step.rows; ++r, ++position) {
      if (position >= epochs * n) continue;
      for (const RowPiece& piece : data.packing().row(data.row_at(position))) {
        ++used[position / n][{piece.document, piece.number}];
      }
    }
  }
  ASSERT_GE(position, epochs * n) << "fewer than " << epochs << " epochs";
  const auto documents = static_cast<uint32_t>(data.file().num_documents());
  for (uint64_t e = 0; e < epochs; ++e) {
    std::vector<int64_t> tokens(documents, 0);
    for (const auto& [piece, times] : used[e]) {
      EXPECT_EQ(times, 1) << "epoch " << e << " document " << piece.first;
      TokenDocument document;
      ASSERT_TRUE(data.file().documents(piece.first, 1, &document).ok());
      tokens[piece.first] += std::min(data.sequence_len(),
                                      document.num_tokens - piece.second * data.sequence_len());
    }
    int64_t all = 0;
    for (uint32_t d = 0; d < documents; ++d) {
      EXPECT_GT(tokens[d], 0) << "epoch " << e << " never used document " << d;
      all += tokens[d];
    }
    EXPECT_EQ(all, data.packing().num_tokens()) << "epoch " << e;
  }
}

}  // namespace pagoda
