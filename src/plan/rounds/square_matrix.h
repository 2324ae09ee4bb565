// A square matrix by rows: traffic between devices, where entry (i, j) is what i sends to j, or the
// weights of pairs.
#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"

namespace pagoda {

template <typename T>
class SquareMatrix {
 public:
  SquareMatrix() = default;
  // REQUIRES: size >= 0.
  explicit SquareMatrix(int size, T value = T()) : size_(size) {
    CHECK(size >= 0, "a matrix of %d rows", size);
    entries_.assign(static_cast<size_t>(size) * static_cast<size_t>(size), value);
  }

  int size() const { return size_; }
  // REQUIRES: 0 <= row, column < size().
  T& at(int row, int column) { return entries_[index(row, column)]; }
  const T& at(int row, int column) const { return entries_[index(row, column)]; }
  const std::vector<T>& entries() const { return entries_; }

  bool operator==(const SquareMatrix&) const = default;

 private:
  size_t index(int row, int column) const {
    return static_cast<size_t>(row) * static_cast<size_t>(size_) + static_cast<size_t>(column);
  }

  int size_ = 0;
  std::vector<T> entries_;
};

}  // namespace pagoda
