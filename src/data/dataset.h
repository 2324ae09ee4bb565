// Rows of tokens to train and evaluate on: documents packed into rows of sequence_len tokens
// (data/packing.h). A text that is longer than a row is cut into pieces; any other document, whose
// parts need each other, is treated as TooLong says. Documents and
// pieces in which nothing would be trained are left out, so every row has something to train.
//
// In a row each piece is a document of its own: positions from 0, attention inside it only. The
// target of a token is the next one of its document if that one's loss weight is above 0; it may
// lie behind the end of a piece, never in another document. The rest of a row is padding: a
// document of its own without targets, which experts do not see.
//
// The order of rows is endless: sequence position p is row random_permutation(seed, epoch, n, p %
// n) of n rows, with epoch = p / n. So the state of a dataset is one number, and nothing is stored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/packing.h"
#include "data/token_file.h"

namespace pagoda {

// B rows of S tokens behind each other, T = B S tokens.
struct Microbatch {
  std::vector<int32_t> tokens;          // (T)
  std::vector<int32_t> targets;         // (T), -1: none
  std::vector<int32_t> positions;       // (T), from 0 in each document of each row
  std::vector<int32_t> document_start;  // (documents + 1), first 0, last T
  std::vector<float> weights;           // (T), above 0 where there is a target, else 0
  std::vector<uint8_t> padding;         // (T), 1: padding
};

enum class RowOrder : uint8_t { kShuffled, kInOrder };

// The treatment of a document that is longer than a row and no text.
enum class TooLong : uint8_t { kTruncate, kDrop, kError };

// Reads rows as they are asked for; const, and any number of threads may ask.
class Dataset {
 public:
  struct Options {
    int64_t sequence_len = 0;
    uint64_t seed = 0;
    RowOrder order = RowOrder::kShuffled;  // kInOrder: row p % n, for evaluation
    TooLong too_long = TooLong::kTruncate;
  };
  // Counts of documents by their treatment; those not counted here are packed whole.
  struct Counts {
    int64_t cut = 0;        // texts longer than a row
    int64_t truncated = 0;  // documents cut to sequence_len tokens
    int64_t dropped = 0;    // longer than a row
    int64_t untrained = 0;  // left out: no trained token, or none in the part that would be kept
  };
  // kBadData when there is nothing to train, or a document is too long under TooLong::kError.
  static Result<Dataset> create(TokenFile file, const Options& options);

  int64_t num_rows() const { return packing_.num_rows(); }  // in one epoch
  int64_t sequence_len() const { return options_.sequence_len; }
  const TokenFile& file() const { return file_; }
  const Packing& packing() const { return packing_; }
  const Counts& counts() const { return counts_; }
  double padding_share() const;  // of all rows' tokens, 0..1

  // The row at a sequence position.
  int64_t row_at(uint64_t position) const;
  // Rows at sequence positions [first_row, first_row + rows).
  Result<Microbatch> microbatch(uint64_t first_row, int64_t rows) const;

 private:
  Dataset(TokenFile file, const Options& options, Packing packing, const Counts& counts)
      : file_(std::move(file)), options_(options), packing_(std::move(packing)), counts_(counts) {}
  Status append_piece(const RowPiece& piece, Microbatch& batch) const;

  TokenFile file_;
  Options options_;
  Packing packing_;
  Counts counts_;
};

// One line for people: "1000 examples, 350000 tokens in 350 rows of 1024 (2.3 % padding); ...".
std::string dataset_text(const Dataset& dataset);

}  // namespace pagoda
