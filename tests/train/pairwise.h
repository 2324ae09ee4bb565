// Tables of runs that have every pair of values of any two factors, in few rows. A program of such
// a table runs every combination if it is started with --full-product, and with --full-product=N
// every one of the first N factors, where the others have their first value.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

namespace pagoda {

// A value of each factor, as its index.
using Levels = std::vector<int>;

// Every combination of so many values a factor, for which `valid` holds.
inline std::vector<Levels> full_product(const Levels& counts,
                                        const std::function<bool(const Levels&)>& valid) {
  std::vector<Levels> rows;
  Levels row(counts.size(), 0);
  while (true) {
    if (valid(row)) rows.push_back(row);
    size_t f = 0;
    while (f < counts.size() && ++row[f] == counts[f]) row[f++] = 0;
    if (f == counts.size()) return rows;
  }
}

// A set of pairs of values of two factors. Without optimisation, as tests are compiled, it takes
// those of half a million rows in a second.
class LevelPairs {
 public:
  explicit LevelPairs(const Levels& counts) {
    for (const int count : counts) {
      first_.push_back(values_);
      values_ += static_cast<size_t>(count);
    }
    has_.resize(values_ * values_, 0);
  }

  // Each of the row's pairs is in it from now on, or is not.
  void set(const Levels& row, bool has) {
    const std::vector<size_t> values = values_of(row);
    for (size_t a = 0; a < values.size(); ++a) {
      char* with_a = has_.data() + values[a] * values_;
      for (size_t b = a + 1; b < values.size(); ++b) with_a[values[b]] = has;
    }
  }
  // How many of the row's pairs are in it.
  size_t count(const Levels& row) const {
    const std::vector<size_t> values = values_of(row);
    size_t found = 0;
    for (size_t a = 0; a < values.size(); ++a) {
      const char* with_a = has_.data() + values[a] * values_;
      for (size_t b = a + 1; b < values.size(); ++b) found += with_a[values[b]] != 0;
    }
    return found;
  }
  bool empty() const { return std::find(has_.begin(), has_.end(), 1) == has_.end(); }

 private:
  // The numbers that the row's values have among those of all factors.
  std::vector<size_t> values_of(const Levels& row) const {
    std::vector<size_t> values = first_;
    for (size_t f = 0; f < values.size(); ++f) values[f] += static_cast<size_t>(row[f]);
    return values;
  }

  std::vector<size_t> first_;  // [factor] the number of its first value
  size_t values_ = 0;
  std::vector<char> has_;  // [value][value of a later factor]
};

// Rows of the full product that have each pair of values that it has: greedily, of some rows that
// are drawn at random always the one with the most new pairs.
inline std::vector<Levels> pairwise(const Levels& counts,
                                    const std::function<bool(const Levels&)>& valid) {
  const std::vector<Levels> all = full_product(counts, valid);
  LevelPairs missing(counts);
  for (const Levels& row : all) missing.set(row, true);
  std::mt19937 random(1);
  std::vector<Levels> rows;
  while (!missing.empty()) {
    const Levels* best = nullptr;
    size_t most = 0;
    for (int draw = 0; draw < 200 || best == nullptr; ++draw) {
      const Levels& row = all[random() % all.size()];
      const size_t added = missing.count(row);
      if (added > most) {
        best = &row;
        most = added;
      }
    }
    missing.set(*best, false);
    rows.push_back(*best);
  }
  return rows;
}

inline bool all_combinations = false;
inline size_t combined_factors = SIZE_MAX;

inline std::vector<Levels> rows_of_table(Levels counts,
                                         const std::function<bool(const Levels&)>& valid) {
  if (!all_combinations) return pairwise(counts, valid);
  for (size_t f = combined_factors; f < counts.size(); ++f) counts[f] = 1;
  return full_product(counts, valid);
}

// Runs every `stride`-th row, with its number, until one fails, and says how many there are.
inline void run_rows(const std::vector<Levels>& rows, size_t stride,
                     const std::function<void(const Levels&, size_t)>& run) {
  for (size_t i = 0; i < rows.size(); i += stride) {
    run(rows[i], i);
    if (testing::Test::HasFailure()) return;
    if (all_combinations && i % 100 == 99) std::printf("%zu of %zu\n", i + 1, rows.size());
  }
  std::printf("%zu runs have one hash\n", rows.size());
}

// What main() of such a program does.
inline int run_table(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr char kOption[] = "--full-product";
  constexpr size_t kLength = sizeof(kOption) - 1;
  all_combinations = argc == 2 && std::strncmp(argv[1], kOption, kLength) == 0;
  if (all_combinations && argv[1][kLength] == '=') {
    combined_factors = std::strtoul(argv[1] + kLength + 1, nullptr, 10);
  }
  return RUN_ALL_TESTS();
}

}  // namespace pagoda
