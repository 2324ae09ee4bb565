#include "base/edit_distance.h"

#include <algorithm>
#include <climits>

namespace pagoda {

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string nearest_word(const std::string& word, const std::vector<std::string>& words) {
  constexpr size_t kLongestWord = 200;  // a longer one is no slip of the finger
  if (word.size() > kLongestWord) return "";
  std::string best;
  int best_distance = INT_MAX;
  for (const std::string& candidate : words) {
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  const int length = static_cast<int>(word.size());
  const int allowed = length < 4 ? 1 : std::max(2, length / 3);
  return best_distance <= allowed ? best : "";
}

}  // namespace pagoda
