#include "data/dataset.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/random.h"

namespace pagoda {

namespace {

constexpr int32_t kPaddingToken = 0;  // any id would do
constexpr int64_t kBlockDocuments = 4096;

Status too_long(int64_t number, int64_t num_tokens, int64_t sequence_len) {
  return Status(Exit::kBadData,
                strf("example %lld has %lld tokens, more than data.sequence_len = %lld; nothing "
                     "was trained: shorten it, raise data.sequence_len, or set data.too_long to "
                     "\"truncate\" or \"drop\"",
                     (long long)number, (long long)num_tokens, (long long)sequence_len));
}

// How many tokens of a document are packed; 0: it is left out. Counts what became of it.
int64_t packed_tokens(const TokenDocument& document, const Dataset::Options& options,
                      Dataset::Counts& counts) {
  const int64_t row_tokens = options.sequence_len;
  const bool fits = document.num_tokens <= row_tokens;
  if (!fits && !document.is_text() && options.too_long == TooLong::kDrop) {
    ++counts.dropped;
    return 0;
  }
  const int64_t most = fits || document.is_text() ? document.num_tokens : row_tokens;
  if (document.first_trained >= most) {
    ++counts.untrained;
    return 0;
  }
  if (fits) return most;
  ++(document.is_text() ? counts.cut : counts.truncated);
  // A text's last piece of one token would have nothing to predict.
  return document.is_text() && most % row_tokens == 1 ? most - 1 : most;
}

Result<std::vector<int64_t>> packed_lengths(const TokenFile& file, const Dataset::Options& options,
                                            Dataset::Counts& counts) {
  std::vector<int64_t> lengths;
  lengths.reserve(static_cast<size_t>(file.num_documents()));
  std::vector<TokenDocument> block(static_cast<size_t>(kBlockDocuments));
  for (int64_t first = 0; first < file.num_documents(); first += kBlockDocuments) {
    const int64_t count = std::min(kBlockDocuments, file.num_documents() - first);
    RETURN_IF_ERROR(file.documents(first, count, block.data()));
    for (int64_t i = 0; i < count; ++i) {
      const TokenDocument& document = block[static_cast<size_t>(i)];
      const bool fits = document.is_text() || document.num_tokens <= options.sequence_len;
      if (options.too_long == TooLong::kError && !fits) {
        return too_long(first + i + 1, document.num_tokens, options.sequence_len);
      }
      lengths.push_back(packed_tokens(document, options, counts));
    }
  }
  return lengths;
}

void append_padding(int64_t count, Microbatch& batch) {
  if (count == 0) return;
  batch.document_start.push_back(narrow<int32_t>(batch.tokens.size()));
  for (int64_t i = 0; i < count; ++i) {
    batch.tokens.push_back(kPaddingToken);
    batch.targets.push_back(-1);
    batch.positions.push_back(static_cast<int32_t>(i));
    batch.weights.push_back(0.0f);
    batch.padding.push_back(1);
  }
}

}  // namespace

Result<Dataset> Dataset::create(TokenFile file, const Options& options) {
  CHECK(options.sequence_len > 1);
  Counts counts;
  ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, packed_lengths(file, options, counts));
  Packing packing(lengths, options.sequence_len);
  if (packing.num_rows() > 0) return Dataset(std::move(file), options, std::move(packing), counts);
  return Status(Exit::kBadData,
                strf("none of %lld examples (%lld tokens) has a token to train within "
                     "data.sequence_len = %lld (%lld dropped as too long); nothing was trained: "
                     "give other data or a larger data.sequence_len",
                     (long long)file.num_documents(), (long long)file.num_tokens(),
                     (long long)options.sequence_len, (long long)counts.dropped));
}

double Dataset::padding_share() const {
  return 1.0 - static_cast<double>(packing_.num_tokens()) /
                   (static_cast<double>(num_rows()) * static_cast<double>(sequence_len()));
}

int64_t Dataset::row_at(uint64_t position) const {
  const auto n = static_cast<uint64_t>(num_rows());
  const uint64_t index = position % n;
  if (options_.order == RowOrder::kInOrder) return static_cast<int64_t>(index);
  return static_cast<int64_t>(random_permutation(options_.seed, position / n, n, index));
}

Status Dataset::append_piece(const RowPiece& piece, Microbatch& batch) const {
  TokenDocument document;
  RETURN_IF_ERROR(file_.documents(piece.document, 1, &document));
  const int64_t first = piece.number * options_.sequence_len;
  const int64_t count = std::min(options_.sequence_len, document.num_tokens - first);
  // A text goes on behind its piece, and the next token is a target; what is truncated is gone.
  const bool goes_on = document.is_text() && first + count < document.num_tokens;
  std::vector<uint32_t> tokens(static_cast<size_t>(count + goes_on));
  std::vector<float> weights(tokens.size(), 1.0f);
  RETURN_IF_ERROR(file_.tokens(document, first, count + goes_on, tokens.data()));
  if (!document.is_text()) RETURN_IF_ERROR(file_.weights(document, count, weights.data()));
  batch.document_start.push_back(narrow<int32_t>(batch.tokens.size()));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const bool trained = i + 1 < tokens.size() && weights[i + 1] > 0;
    batch.tokens.push_back(narrow<int32_t>(tokens[i]));
    batch.targets.push_back(trained ? narrow<int32_t>(tokens[i + 1]) : -1);
    batch.positions.push_back(static_cast<int32_t>(i));
    batch.weights.push_back(trained ? weights[i + 1] : 0.0f);
    batch.padding.push_back(0);
  }
  return Status();
}

Result<Microbatch> Dataset::microbatch(uint64_t first_row, int64_t rows) const {
  Microbatch batch;
  const auto total = static_cast<size_t>(rows * options_.sequence_len);
  batch.tokens.reserve(total);
  batch.targets.reserve(total);
  batch.positions.reserve(total);
  batch.weights.reserve(total);
  batch.padding.reserve(total);
  for (int64_t r = 0; r < rows; ++r) {
    for (const RowPiece& piece : packing_.row(row_at(first_row + static_cast<uint64_t>(r)))) {
      RETURN_IF_ERROR(append_piece(piece, batch));
    }
    const auto used = static_cast<int64_t>(batch.tokens.size());
    append_padding((r + 1) * options_.sequence_len - used, batch);
  }
  batch.document_start.push_back(narrow<int32_t>(batch.tokens.size()));
  return batch;
}

std::string dataset_text(const Dataset& dataset) {
  const Dataset::Counts& counts = dataset.counts();
  std::string text = strf("%lld examples, %lld tokens in %lld rows of %lld (%.1f %% padding)",
                          (long long)dataset.file().num_documents(),
                          (long long)dataset.packing().num_tokens(), (long long)dataset.num_rows(),
                          (long long)dataset.sequence_len(), 100 * dataset.padding_share());
  const auto add = [&](int64_t count, const char* what) {
    if (count > 0) text += strf("; %lld %s", (long long)count, what);
  };
  add(counts.cut, "longer than a row, cut into pieces");
  add(counts.truncated, "longer than a row, truncated");
  add(counts.dropped, "longer than a row, dropped");
  add(counts.untrained, "without a token to train, left out");
  return text + "; " + format_bytes(dataset.packing().memory_bytes()) + " of memory to find them";
}

}  // namespace pagoda
