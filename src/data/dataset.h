// Rows of tokens to train and evaluate on. All documents, each followed by end-of-text, form one
// stream; row r is its tokens [r S, r S + S) with S = sequence_len, and the incomplete rest is
// dropped. The target of a token is the token that follows it in its document, also across the end
// of a row; the last token of a document has none. A document that goes on in the next row is a new
// one there for attention and positions.
//
// The order of rows is endless: sequence position p is row random_permutation(seed, epoch, n, p %
// n) of n rows, with epoch = p / n. So the state of a dataset is one number, and nothing is stored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace pagoda {

// B rows behind each other, T = B S tokens.
struct Microbatch {
  std::vector<int32_t> tokens;          // (T)
  std::vector<int32_t> targets;         // (T), -1: none
  std::vector<int32_t> positions;       // (T), from 0 in each document of each row
  std::vector<int32_t> document_start;  // (documents + 1), first 0, last T
  std::vector<float> weights;           // (T), 1 where there is a target, else 0
};

enum class RowOrder : uint8_t { kShuffled, kInOrder };

// Reads rows as they are asked for; const, and any number of threads may ask.
class Dataset {
 public:
  struct Options {
    int64_t sequence_len = 0;
    uint64_t seed = 0;
    RowOrder order = RowOrder::kShuffled;  // kInOrder: row p % n, for evaluation
  };
  // kBadData when the text is shorter than one row, naming how many tokens it has.
  static Result<Dataset> create(TokenFile file, const Options& options);

  int64_t num_rows() const { return num_rows_; }  // of one epoch
  int64_t sequence_len() const { return options_.sequence_len; }
  const TokenFile& file() const { return file_; }

  // Rows at sequence positions [first_row, first_row + rows).
  Result<Microbatch> microbatch(uint64_t first_row, int64_t rows) const;

 private:
  Dataset(TokenFile file, const Options& options)
      : file_(std::move(file)),
        options_(options),
        num_rows_(file_.num_tokens() / options.sequence_len) {}
  int64_t row_at(uint64_t position) const;

  TokenFile file_;
  Options options_;
  int64_t num_rows_;
};

}  // namespace pagoda
