// Packing decides which pieces of documents share a row of sequence_len tokens. Best-fit decreasing
// by length (Johnson 1973; for training data Ding et al. 2024, "Fewer Truncations Improve Language
// Modeling", arXiv 2404.10830): a document is never cut to fill a row, and where lengths vary rows
// are filled almost to the end.
//
// A document longer than a row is cut into pieces of a whole row, and its rest is packed like a
// document. Pieces are taken longest first, those of equal length in the order of the documents.
// Each goes into the fullest row that has room for it (among equally full ones, the last that
// became so), or else into a new row. Rows are then numbered by the first document in them, so that
// their order is that of the data.
//
// Pure: the same lengths give the same rows. O(n log sequence_len) for n pieces. Memory: 8 bytes a
// piece and 8 a row; while it is made 8 a document and 16 a row more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pagoda {

// RowPiece `number` of a document: sequence_len tokens from number * sequence_len on, or the rest.
struct RowPiece {
  uint32_t document = 0;
  uint32_t number = 0;
  bool operator==(const RowPiece&) const = default;
};

class Packing {
 public:
  // lengths: tokens of each document, 0: it is left out. REQUIRES: sequence_len > 0, fewer than
  // 2^32 documents and pieces of each.
  Packing(std::span<const int64_t> lengths, int64_t sequence_len);

  int64_t num_rows() const { return static_cast<int64_t>(first_piece_.size()) - 1; }
  int64_t num_tokens() const { return num_tokens_; }  // in all rows, without padding
  // The pieces of a row in the order of their documents.
  std::span<const RowPiece> row(int64_t r) const {
    const auto at = static_cast<size_t>(r);
    return {pieces_.data() + first_piece_[at],
            static_cast<size_t>(first_piece_[at + 1] - first_piece_[at])};
  }
  int64_t memory_bytes() const;

 private:
  std::vector<RowPiece> pieces_;      // row after row
  std::vector<int64_t> first_piece_;  // (rows + 1)
  int64_t num_tokens_ = 0;
};

}  // namespace pagoda
