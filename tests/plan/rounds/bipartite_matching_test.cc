// Matchings against all subsets and all permutations on small graphs.
#include "plan/rounds/bipartite_matching.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "tests/testing/plan/random_traffic.h"

namespace pagoda {
namespace {

SquareMatrix<uint8_t> random_edges(std::mt19937& random, int n) {
  SquareMatrix<uint8_t> edges(n);
  const uint32_t in_ten = 1 + random() % 7;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) edges.at(i, j) = random() % 10 < in_ten;
  }
  return edges;
}

// Pairs of the largest matching, over all sets of columns that the first rows can take.
int most_pairs(const SquareMatrix<uint8_t>& edges) {
  std::vector<char> reached(size_t{1} << edges.size(), 0);
  reached[0] = 1;
  for (int row = 0; row < edges.size(); ++row) {
    // From large sets to small ones, so that a row is not used twice.
    for (size_t set = reached.size(); set-- > 0;) {
      if (!reached[set]) continue;
      for (int column = 0; column < edges.size(); ++column) {
        if (edges.at(row, column) && !(set >> column & 1)) reached[set | size_t{1} << column] = 1;
      }
    }
  }
  int most = 0;
  for (size_t set = 0; set < reached.size(); ++set) {
    if (reached[set]) most = std::max(most, std::popcount(set));
  }
  return most;
}

int pairs(const SquareMatrix<uint8_t>& edges, const BipartiteMatching& matching) {
  int count = 0;
  for (int row = 0; row < edges.size(); ++row) {
    const int column = matching.column_of_row[row];
    if (column == kUnmatched) continue;
    EXPECT_TRUE(edges.at(row, column)) << row << " " << column;
    EXPECT_EQ(matching.row_of_column[column], row);
    ++count;
  }
  const auto& rows = matching.row_of_column;
  EXPECT_EQ(std::count(rows.begin(), rows.end(), kUnmatched), edges.size() - count);
  return count;
}

TEST(BipartiteMatching, HasAsManyPairsAsThereCanBe) {
  int perfect = 0;
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int n = static_cast<int>(1 + random() % 8);
    const auto edges = random_edges(random, n);
    BipartiteMatching matching(n);
    complete(edges, matching);
    ASSERT_EQ(pairs(edges, matching), most_pairs(edges));
    ASSERT_EQ(matching.perfect(), most_pairs(edges) == n);
    perfect += matching.perfect();
  }
  EXPECT_GT(perfect, 500);
  EXPECT_LT(perfect, 2500);
}

TEST(BipartiteMatching, GoesOnFromWhatItIsGiven) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int n = static_cast<int>(2 + random() % 7);
    const auto edges = random_edges(random, n);
    BipartiteMatching matching(n);
    std::vector<int> given;
    for (int row = 0; row < n; ++row) {
      const int column = static_cast<int>(random() % static_cast<uint32_t>(n));
      if (!edges.at(row, column) || matching.row_of_column[column] != kUnmatched) continue;
      matching.join(row, column);
      given.push_back(row);
    }
    complete(edges, matching);
    ASSERT_EQ(pairs(edges, matching), most_pairs(edges));
    for (int row : given) ASSERT_NE(matching.column_of_row[row], kUnmatched) << row;
  }
}

TEST(BipartiteMatching, BottleneckIsTheLeastOfAllPermutations) {
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int n = static_cast<int>(1 + random() % 7);
    const uint32_t values = random() % 2 ? 6 : 1000;  // many equal ones, or few
    SquareMatrix<double> weights(n);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) weights.at(i, j) = static_cast<double>(random() % values) - 3;
    }
    double least = std::numeric_limits<double>::infinity();
    each_permutation(n, [&](const std::vector<int>& columns) {
      double most = -std::numeric_limits<double>::infinity();
      for (int i = 0; i < n; ++i) most = std::max(most, weights.at(i, columns[i]));
      least = std::min(least, most);
    });
    auto found = bottleneck_matching(weights);
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_EQ(found->largest_weight, least);
    double most = -std::numeric_limits<double>::infinity();
    std::vector<int> sorted = found->column_of_row;
    std::sort(sorted.begin(), sorted.end());
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(sorted[i], i);
      most = std::max(most, weights.at(i, found->column_of_row[i]));
    }
    ASSERT_EQ(most, least);
  }
}

TEST(BipartiteMatching, WeightsThatAreNoNumbersAreRefused) {
  EXPECT_EQ(bottleneck_matching(SquareMatrix<double>()).status().code(), Exit::kUsage);
  for (double bad : {std::numeric_limits<double>::quiet_NaN(),
                     std::numeric_limits<double>::infinity()}) {
    SquareMatrix<double> weights(3, 1);
    weights.at(1, 2) = bad;
    const Status status = bottleneck_matching(weights).status();
    EXPECT_EQ(status.code(), Exit::kUsage);
    EXPECT_NE(status.message().find("pair (1, 2)"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace pagoda
