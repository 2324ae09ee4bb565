// Matches rows with columns along the edges of a bipartite graph, which is given as a matrix; each
// is in at most one pair. Ties are broken by index: equal input gives equal output.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/rounds/square_matrix.h"

namespace pagoda {

inline constexpr int kUnmatched = -1;

struct BipartiteMatching {
  explicit BipartiteMatching(int size)
      : column_of_row(size, kUnmatched), row_of_column(size, kUnmatched) {}
  bool perfect() const;
  void join(int row, int column);  // REQUIRES: the column is unmatched, or its row has left it
  void separate(int row);          // REQUIRES: the row is matched

  std::vector<int> column_of_row;
  std::vector<int> row_of_column;
};

// Adds pairs to `matching` until none can be added, by augmenting along shortest paths (Hopcroft
// and Karp, SIAM J. Comput. 1973). An edge is an entry that is not 0. A row that is matched stays
// matched, perhaps to another column. O(n^2 sqrt(n)). REQUIRES: `matching` is of the matrix's size
// and its pairs are edges.
void complete(const SquareMatrix<uint8_t>& edges, BipartiteMatching& matching);

struct BottleneckMatching {
  std::vector<int> column_of_row;  // a permutation
  double largest_weight = 0;       // the weight of the heaviest pair
};

// The perfect matching whose heaviest pair is lightest (Aurora section 6.2, case II): binary search
// over the weights with complete() over the edges that are no heavier. Below its heaviest pair it
// does not choose. Weights may be negative. O(n^2 sqrt(n) log(n)).
// kUsage without rows or for a weight that is not finite.
Result<BottleneckMatching> bottleneck_matching(const SquareMatrix<double>& weights);

}  // namespace pagoda
