#include "plan/rounds/bipartite_matching.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <utility>

namespace pagoda {
namespace {

// Runs the phases of Hopcroft and Karp one after the other.
class ShortestPaths {
 public:
  ShortestPaths(const SquareMatrix<uint8_t>& edges, BipartiteMatching& matching)
      : edges_(edges), matching_(matching), depth_(edges.size()) {}

  void augment_all() {
    while (measure()) {
      for (int row = 0; row < edges_.size(); ++row) {
        if (matching_.column_of_row[row] == kUnmatched) augment(row);
      }
    }
  }

 private:
  static constexpr int kFar = INT_MAX;

  // Measures the depths of rows from the unmatched ones, over an edge and back over a pair, and the
  // least depth from which an unmatched column is reached; false if there is none.
  bool measure() {
    std::vector<int> queue;
    for (int row = 0; row < edges_.size(); ++row) {
      const bool starts = matching_.column_of_row[row] == kUnmatched;
      depth_[row] = starts ? 0 : kFar;
      if (starts) queue.push_back(row);
    }
    last_depth_ = kFar;
    for (size_t next = 0; next < queue.size(); ++next) {
      const int row = queue[next];
      if (depth_[row] > last_depth_) break;
      for (int column = 0; column < edges_.size(); ++column) {
        if (edges_.at(row, column) == 0) continue;
        const int owner = matching_.row_of_column[column];
        if (owner == kUnmatched) last_depth_ = depth_[row];
        if (owner == kUnmatched || depth_[owner] != kFar) continue;
        depth_[owner] = depth_[row] + 1;
        queue.push_back(owner);
      }
    }
    return last_depth_ != kFar;
  }

  // A row serves one path of a phase, so that paths share no row and each has the least length.
  bool augment(int row) {
    const int depth = std::exchange(depth_[row], kFar);
    for (int column = 0; column < edges_.size(); ++column) {
      if (edges_.at(row, column) == 0) continue;
      const int owner = matching_.row_of_column[column];
      const bool further = owner != kUnmatched && depth < last_depth_ && depth_[owner] == depth + 1;
      if (owner != kUnmatched && !(further && augment(owner))) continue;
      matching_.join(row, column);
      return true;
    }
    return false;
  }

  const SquareMatrix<uint8_t>& edges_;
  BipartiteMatching& matching_;
  std::vector<int> depth_;
  int last_depth_ = kFar;
};

BipartiteMatching matching_within(const SquareMatrix<double>& weights, double most) {
  SquareMatrix<uint8_t> edges(weights.size());
  for (int i = 0; i < weights.size(); ++i) {
    for (int j = 0; j < weights.size(); ++j) edges.at(i, j) = weights.at(i, j) <= most;
  }
  BipartiteMatching matching(weights.size());
  complete(edges, matching);
  return matching;
}

Status check_weights(const SquareMatrix<double>& weights) {
  if (weights.size() == 0) return Status(Exit::kUsage, "nothing to match; name a pair");
  for (int i = 0; i < weights.size(); ++i) {
    for (int j = 0; j < weights.size(); ++j) {
      if (std::isfinite(weights.at(i, j))) continue;
      return Status(Exit::kUsage, strf("the weight of pair (%d, %d) is %g, not finite; nothing was "
                                       "matched, correct it", i, j, weights.at(i, j)));
    }
  }
  return Status();
}

}  // namespace

bool BipartiteMatching::perfect() const {
  return std::find(column_of_row.begin(), column_of_row.end(), kUnmatched) == column_of_row.end();
}

void BipartiteMatching::join(int row, int column) {
  column_of_row[row] = column;
  row_of_column[column] = row;
}

void BipartiteMatching::separate(int row) {
  const int column = std::exchange(column_of_row[row], kUnmatched);
  CHECK(column != kUnmatched, "row %d has no column", row);
  row_of_column[column] = kUnmatched;
}

void complete(const SquareMatrix<uint8_t>& edges, BipartiteMatching& matching) {
  CHECK(matching.column_of_row.size() == static_cast<size_t>(edges.size()));
  ShortestPaths(edges, matching).augment_all();
}

Result<BottleneckMatching> bottleneck_matching(const SquareMatrix<double>& weights) {
  RETURN_IF_ERROR(check_weights(weights));
  std::vector<double> levels = weights.entries();
  std::sort(levels.begin(), levels.end());
  levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
  size_t low = 0, high = levels.size() - 1;  // every pair is within the highest
  BipartiteMatching best = matching_within(weights, levels[high]);
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    BipartiteMatching matching = matching_within(weights, levels[middle]);
    if (matching.perfect()) {
      best = std::move(matching);
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  CHECK(best.perfect());
  return BottleneckMatching{std::move(best.column_of_row), levels[high]};
}

}  // namespace pagoda
