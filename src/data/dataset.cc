#include "data/dataset.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/random.h"

namespace pagoda {

namespace {

// Appends a row of S tokens. `stream` holds them and the token behind the row, marked as in the
// token file; at the end of the stream that one is kDocumentMark.
void append_row(const std::vector<uint32_t>& stream, Microbatch& batch) {
  const size_t row_tokens = stream.size() - 1;
  int32_t position = 0;
  for (size_t i = 0; i < row_tokens; ++i) {
    if (i == 0 || (stream[i] & kDocumentMark) != 0) {
      batch.document_start.push_back(narrow<int32_t>(batch.tokens.size()));
      position = 0;
    }
    const bool last_of_document = (stream[i + 1] & kDocumentMark) != 0;
    batch.tokens.push_back(static_cast<int32_t>(stream[i] & ~kDocumentMark));
    batch.targets.push_back(last_of_document ? -1 : static_cast<int32_t>(stream[i + 1]));
    batch.weights.push_back(last_of_document ? 0.0f : 1.0f);
    batch.positions.push_back(position++);
  }
}

}  // namespace

Result<Dataset> Dataset::create(TokenFile file, const Options& options) {
  CHECK(options.sequence_len > 0);
  Dataset dataset(std::move(file), options);
  if (dataset.num_rows_ > 0) return dataset;
  return Status(Exit::kBadData,
                strf("the text has %lld tokens, too few for one row of %lld; give more text or a "
                     "smaller sequence_len",
                     (long long)dataset.file_.num_tokens(), (long long)options.sequence_len));
}

int64_t Dataset::row_at(uint64_t position) const {
  const auto n = static_cast<uint64_t>(num_rows_);
  const uint64_t index = position % n;
  if (options_.order == RowOrder::kInOrder) return static_cast<int64_t>(index);
  return static_cast<int64_t>(random_permutation(options_.seed, position / n, n, index));
}

Result<Microbatch> Dataset::microbatch(uint64_t first_row, int64_t rows) const {
  const int64_t row_tokens = options_.sequence_len;
  Microbatch batch;
  const auto total = static_cast<size_t>(rows * row_tokens);
  batch.tokens.reserve(total);
  batch.targets.reserve(total);
  batch.positions.reserve(total);
  batch.weights.reserve(total);
  std::vector<uint32_t> stream(static_cast<size_t>(row_tokens) + 1);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t first = row_at(first_row + static_cast<uint64_t>(r)) * row_tokens;
    const int64_t count = std::min(row_tokens + 1, file_.num_tokens() - first);
    stream.back() = kDocumentMark;
    RETURN_IF_ERROR(file_.read(first, count, stream.data()));
    append_row(stream, batch);
  }
  batch.document_start.push_back(narrow<int32_t>(batch.tokens.size()));
  return batch;
}

}  // namespace pagoda
