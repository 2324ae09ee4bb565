// The token file: all input, tokenised once, in the run's output directory.
//
//   offset  bytes  content (little endian)
//        0      8  "PGDTOKEN"
//        8      8  format, 1
//       16      8  number of tokens
//       24      8  number of documents
//       32     32  fingerprint of the input: texts and tokenizer, hex
//       64     32  XXH3-128 of the tokens' bytes, hex
//       96     32  XXH3-128 of bytes 0 to 95, hex
//      128     4n  tokens, u32; bit 31 is set on the first token of each document
//
// Every document ends with the end-of-text token. The mark says where a document begins without a
// second table, so any range of tokens can be used on its own and memory does not grow with the
// number of documents.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/example.h"

namespace pagoda {

inline constexpr uint32_t kDocumentMark = uint32_t{1} << 31;

// Reads are const and may run on any number of threads.
class TokenFile {
 public:
  // Uses the file at `path` when it is whole and was made of the same texts, tokenizer and options,
  // else tokenises `text_paths` into it, streaming (it appears there complete or not at all).
  // Errors in the texts as in data/example.h.
  static Result<TokenFile> open_or_create(const std::string& path,
                                          const std::vector<std::string>& text_paths,
                                          const Tokenizer& tokenizer,
                                          const ExampleOptions& options);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }
  // Of texts and tokenizer, 32 hex digits; a resumed run compares it.
  const std::string& fingerprint() const { return fingerprint_; }
  bool reused() const { return reused_; }  // by open_or_create, for the log and tests
  // Tokens [first, first + count) with their marks.
  Status read(int64_t first, int64_t count, uint32_t* out) const;

 private:
  explicit TokenFile(InputFile file) : file_(std::move(file)) {}
  static Result<TokenFile> open(const std::string& path);
  Status check_tokens() const;

  InputFile file_;
  int64_t num_tokens_ = 0, num_documents_ = 0;
  std::string fingerprint_, tokens_hash_;
  bool reused_ = false;
};

}  // namespace pagoda
