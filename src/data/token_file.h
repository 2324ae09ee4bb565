// The token cache holds all input as tokens and loss weights. It is made once, in the run's output
// directory.
//
//   offset  bytes  content (little endian)
//        0      8  "PGDTOKEN"
//        8      8  format, 2
//       16      8  number of tokens
//       24      8  number of documents
//       32      8  words before the index
//       40     32  XXH3-128 of the data's files, hex (fingerprint_of_files)
//       72     32  XXH3-128 of the tokenizer's identity, hex
//      104     32  XXH3-128 of the options' cache key, template included, hex
//      136     32  XXH3-128 of everything behind the header, hex
//      168     32  XXH3-128 of bytes 0 to 167, hex
//      200     4w  words, u32: of each document its tokens, then its runs of weights
//            16 n  index: of each document u64 first word, u32 runs, u32 first trained token
//
// A run is two words: how many tokens, and the loss weight (fp32) of predicting each of them. A
// document without runs is a text: weight 1 everywhere. Any other has one at least. The weight of a
// document's first token, which nothing predicts, is taken to be that of the second. "First
// trained" is the first token behind the first with a weight above 0; kNoneTrained: none. Rows are
// not stored: they follow from the index and the sequence length (data/packing.h), so another
// length needs no new cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/example.h"

namespace pagoda {

inline constexpr uint32_t kNoneTrained = ~uint32_t{0};

// One document in a TokenFile.
struct TokenDocument {
  int64_t first_word = 0;
  int64_t num_tokens = 0;
  int64_t num_runs = 0;
  uint32_t first_trained = kNoneTrained;
  bool is_text() const { return num_runs == 0; }
};

// The things that a cache depends on, as hashes of 32 hex digits: equal keys mean equal content.
struct TokenKey {
  std::string data, tokenizer, options;
  bool operator==(const TokenKey&) const = default;
};

// Reads are const and may run on any number of threads.
class TokenFile {
 public:
  // Uses the file at `path` when it is whole and has this key. Otherwise says in one line why not,
  // and makes it again, streaming, from the examples that `read` gives (the file appears complete
  // or not at all). Errors are those of `read`. Memory: some blocks, and 16 bytes a document while
  // it is made.
  static Result<TokenFile> open_or_create(const std::string& path, const TokenKey& key,
                                          const std::function<Status(ExampleSink&)>& read);
  // The same for the examples that read_examples gives for files.
  static Result<TokenFile> open_or_create(const std::string& path,
                                          const std::vector<std::string>& data_paths,
                                          const Tokenizer& tokenizer,
                                          const ExampleOptions& options);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }
  // 32 hex digits for data, tokenizer and options; a resumed run compares them.
  std::string fingerprint() const;
  bool reused() const { return reused_; }  // open_or_create used an existing file; for tests

  // Documents [first, first + count).
  Status documents(int64_t first, int64_t count, TokenDocument* out) const;
  // Tokens [first, first + count) of a document. kIoError for an id that the tokenizer does not
  // have.
  Status tokens(const TokenDocument& document, int64_t first, int64_t count, uint32_t* out) const;
  // Weights of the first `count` tokens of a document.
  Status weights(const TokenDocument& document, int64_t count, float* out) const;

 private:
  explicit TokenFile(InputFile file) : file_(std::move(file)) {}
  static Result<TokenFile> open(const std::string& path);
  static Status create(const std::string& path, const TokenKey& key,
                       const std::function<Status(ExampleSink&)>& read);
  Status check_content() const;
  Status check_index() const;
  int64_t index_offset() const;

  InputFile file_;
  int64_t num_tokens_ = 0, num_documents_ = 0, num_words_ = 0;
  TokenKey key_;
  std::string content_hash_;
  int64_t num_ids_ = int64_t{1} << 31;  // all ids are below it
  bool reused_ = false;
};

}  // namespace pagoda
