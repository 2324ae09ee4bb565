#include "data/packing.h"

#include <map>

#include "base/bytes.h"

namespace pagoda {

namespace {

constexpr uint32_t kNoRow = ~uint32_t{0};

// The documents that have a rest, by its length, longest first; a counting sort.
std::vector<uint32_t> longest_first(std::span<const int64_t> lengths, int64_t sequence_len) {
  std::vector<int64_t> place(static_cast<size_t>(sequence_len) + 1, 0);
  for (const int64_t length : lengths) ++place[static_cast<size_t>(length % sequence_len)];
  int64_t used = 0;
  for (size_t rest = place.size() - 1; rest > 0; --rest) {
    const int64_t count = place[rest];
    place[rest] = used;
    used += count;
  }
  std::vector<uint32_t> order(static_cast<size_t>(used));
  for (size_t d = 0; d < lengths.size(); ++d) {
    const auto rest = static_cast<size_t>(lengths[d] % sequence_len);
    if (rest > 0) order[static_cast<size_t>(place[rest]++)] = static_cast<uint32_t>(d);
  }
  return order;
}

// The row that each document's rest goes into, in the order in which rows were opened.
std::vector<uint32_t> best_fit(std::span<const int64_t> lengths, int64_t sequence_len) {
  std::vector<uint32_t> row_of(lengths.size(), kNoRow);
  std::map<int64_t, std::vector<uint32_t>> rows_by_room;
  uint32_t num_rows = 0;
  for (const uint32_t document : longest_first(lengths, sequence_len)) {
    const int64_t rest = lengths[document] % sequence_len;
    const auto fullest = rows_by_room.lower_bound(rest);
    int64_t room = sequence_len;
    uint32_t row = num_rows;
    if (fullest == rows_by_room.end()) {
      ++num_rows;
    } else {
      room = fullest->first;
      row = fullest->second.back();
      fullest->second.pop_back();
      if (fullest->second.empty()) rows_by_room.erase(fullest);
    }
    row_of[document] = row;
    if (room > rest) rows_by_room[room - rest].push_back(row);
  }
  return row_of;
}

// Numbers rows by their first document: `row_of` becomes the number of each rest's row. Whole rows
// of a document come before its rest. Returns how many pieces each row has.
std::vector<int64_t> number_rows(std::span<const int64_t> lengths, int64_t sequence_len,
                                 std::vector<uint32_t>& row_of) {
  std::vector<int64_t> pieces;
  std::vector<uint32_t> number(row_of.size(), kNoRow);
  for (size_t d = 0; d < lengths.size(); ++d) {
    pieces.insert(pieces.end(), static_cast<size_t>(lengths[d] / sequence_len), 1);
    if (row_of[d] == kNoRow) continue;
    uint32_t& mine = number[row_of[d]];
    if (mine == kNoRow) {
      mine = narrow<uint32_t>(pieces.size());
      pieces.push_back(0);
    }
    ++pieces[mine];
    row_of[d] = mine;
  }
  return pieces;
}

}  // namespace

Packing::Packing(std::span<const int64_t> lengths, int64_t sequence_len) {
  CHECK(sequence_len > 0 && lengths.size() < kNoRow);
  std::vector<uint32_t> row_of = best_fit(lengths, sequence_len);
  const std::vector<int64_t> counts = number_rows(lengths, sequence_len, row_of);
  first_piece_.assign(1, 0);
  first_piece_.reserve(counts.size() + 1);
  for (const int64_t count : counts) first_piece_.push_back(first_piece_.back() + count);
  pieces_.resize(static_cast<size_t>(first_piece_.back()));
  std::vector<int64_t> next(first_piece_);  // where each row's next piece goes
  uint32_t new_row = 0;
  for (size_t d = 0; d < lengths.size(); ++d) {
    const auto document = static_cast<uint32_t>(d);
    const auto whole = narrow<uint32_t>(lengths[d] / sequence_len);
    num_tokens_ += lengths[d];
    for (uint32_t i = 0; i < whole; ++i) {
      pieces_[static_cast<size_t>(next[new_row++])] = {document, i};
    }
    if (row_of[d] == kNoRow) continue;
    pieces_[static_cast<size_t>(next[row_of[d]]++)] = {document, whole};
    new_row += row_of[d] == new_row;  // this document opened it
  }
}

int64_t Packing::memory_bytes() const {
  return static_cast<int64_t>(pieces_.capacity() * sizeof(RowPiece) +
                              first_piece_.capacity() * sizeof(int64_t));
}

}  // namespace pagoda
