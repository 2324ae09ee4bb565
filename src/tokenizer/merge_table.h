// The merges of a BPE model: the pairs of adjacent tokens, the token that each pair becomes, and
// their order. A hash table with open addressing, at most half full, because a text asks it once a
// byte.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace pagoda {

struct Merge {
  uint32_t rank;  // lower goes first
  uint32_t id;    // the token that the two become
};

// REQUIRES: ids below 2^32 - 1.
class MergeTable {
 public:
  MergeTable() : MergeTable(0) {}
  explicit MergeTable(size_t capacity)
      : slots_(std::bit_ceil(2 * capacity + 2)), shift_(64 - std::countr_zero(slots_.size())) {}

  // Replaces the merge of a pair that is already there. REQUIRES: no more pairs than `capacity`.
  void put(uint32_t left, uint32_t right, Merge merge) {
    Slot& slot = slots_[place(left, right)];
    CHECK(slot.pair != kEmpty || ++used_ * 2 <= slots_.size());
    slot = {key(left, right), merge};
  }
  // nullptr: the two do not merge.
  const Merge* find(uint32_t left, uint32_t right) const {
    const Slot& slot = slots_[place(left, right)];
    return slot.pair == kEmpty ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t pair = kEmpty;
    Merge merge = {0, 0};
  };
  static uint64_t key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  // The slot of the pair, or the empty one where it would go.
  size_t place(uint32_t left, uint32_t right) const {
    const uint64_t pair = key(left, right);
    // Fibonacci hashing (Knuth, TAOCP 3, 6.4); the fold lets both halves reach the upper bits.
    size_t at = ((pair ^ pair >> 29) * 0x9E3779B97F4A7C15u) >> shift_;
    while (slots_[at].pair != pair && slots_[at].pair != kEmpty)
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Slot> slots_;
  int shift_;
  size_t used_ = 0;
};

}  // namespace pagoda
