#include "data/token_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "data/token_file.h"

namespace pagoda {

namespace {
constexpr size_t kBlockWords = size_t{1} << 18;
}

Status TokenWriter::example(Example&& example) {
  CHECK(!example.tokens.empty() && example.tokens.size() == example.weights.size());
  if (!is_open_) {
    begin_document();
    // Nothing predicts the first token: its weight is chosen so that it makes no run of its own.
    example.weights[0] = example.weights.size() > 1 ? example.weights[1] : 1.0f;
  }
  is_text_ = is_text_ && example.is_text;
  add_weights(example.weights);
  words_.insert(words_.end(), example.tokens.begin(), example.tokens.end());
  document_tokens_ += static_cast<int64_t>(example.tokens.size());
  if (!example.continues) end_document();
  return words_.size() >= kBlockWords ? flush() : Status();
}

void TokenWriter::begin_document() {
  is_open_ = is_text_ = true;
  document_tokens_ = 0;
  runs_.clear();
  index_.push_back({static_cast<uint64_t>(num_words_) + words_.size(), 0, kNoneTrained});
}

void TokenWriter::add_weights(const std::vector<float>& weights) {
  uint32_t& first_trained = index_.back().first_trained;
  for (size_t i = 0; i < weights.size(); ++i) {
    const float weight = weights[i];
    CHECK(std::isfinite(weight) && weight >= 0, "loss weight %g", static_cast<double>(weight));
    const int64_t token = document_tokens_ + static_cast<int64_t>(i);
    if (weight > 0 && token > 0 && first_trained == kNoneTrained) {
      first_trained = static_cast<uint32_t>(std::min<int64_t>(token, kNoneTrained - 1));
    }
    const bool same = !runs_.empty() && runs_.back().weight == weight;
    if (!same || runs_.back().count == ~uint32_t{0}) runs_.push_back({0, weight});
    ++runs_.back().count;
  }
}

void TokenWriter::end_document() {
  num_tokens_ += document_tokens_;
  is_open_ = false;
  if (is_text_) {
    for (const WeightRun& run : runs_) CHECK(run.weight == 1.0f, "a text with masked tokens");
    return;
  }
  index_.back().num_runs = narrow<uint32_t>(runs_.size());
  for (const WeightRun& run : runs_) {
    uint32_t words[2];
    std::memcpy(words, &run, sizeof(run));
    words_.insert(words_.end(), words, words + 2);
  }
}

Status TokenWriter::finish() {
  CHECK(!is_open_, "the last document does not end");
  RETURN_IF_ERROR(flush());
  return append(index_.data(), num_documents() * static_cast<int64_t>(sizeof(TokenIndexEntry)));
}

Status TokenWriter::flush() {
  const Status status = append(words_.data(), static_cast<int64_t>(words_.size()) * 4);
  num_words_ += static_cast<int64_t>(words_.size());
  words_.clear();
  return status;
}

Status TokenWriter::append(const void* data, int64_t bytes) {
  hash_.add(data, bytes);
  return file_.append(data, bytes);
}

}  // namespace pagoda
