// Writes a token file behind its header (data/token_file.h): documents as they come, then their
// index.
#pragma once

#include <cstdint>
#include <vector>

#include "base/output_file.h"
#include "data/example.h"
#include "tokenizer/fingerprint.h"

namespace pagoda {

// An entry of the index as it lies in the file.
struct TokenIndexEntry {
  uint64_t first_word = 0;
  uint32_t num_runs = 0;
  uint32_t first_trained = 0;
};
static_assert(sizeof(TokenIndexEntry) == 16);

// A run of weights as it lies in the file.
struct WeightRun {
  uint32_t count = 0;
  float weight = 0;
};
static_assert(sizeof(WeightRun) == 8);

class TokenWriter : public ExampleSink {
 public:
  // Appends to `file`, which is not owned.
  explicit TokenWriter(OutputFile& file) : file_(file) {}

  // CHECKs what data/example.h promises: a weight a token, weights finite and not negative, those
  // of a text 1.
  Status example(Example&& example) override;
  // Writes the rest and the index. Last call.
  Status finish();

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return static_cast<int64_t>(index_.size()); }
  int64_t num_words() const { return num_words_; }
  std::string content_hash() const { return hash_.hex(); }

 private:
  void add_weights(const std::vector<float>& weights);
  void begin_document();
  void end_document();
  Status append(const void* data, int64_t bytes);
  Status flush();

  OutputFile& file_;
  Fingerprint hash_;
  std::vector<uint32_t> words_;         // not written yet
  std::vector<WeightRun> runs_;         // weights of the open document
  std::vector<TokenIndexEntry> index_;  // the last entry's document may be open
  bool is_open_ = false, is_text_ = true;
  int64_t document_tokens_ = 0;  // tokens of the open document
  int64_t num_tokens_ = 0, num_words_ = 0;
};

}  // namespace pagoda
