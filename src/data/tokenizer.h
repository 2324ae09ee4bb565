// Text to token ids. Here: the byte tokenizer, whose ids 0..255 are the bytes and 256 ends a text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace pagoda {

inline constexpr int64_t kByteVocabSize = 257;

// The byte tokenizer as a tokenizer.json of Hugging Face tokenizers: byte-level BPE without merges,
// its vocabulary the GPT-2 byte alphabet in byte order, and "<|endoftext|>" = 256 as added token.
std::string byte_tokenizer_json();
// The tokenizer_config.json that goes with it.
std::string byte_tokenizer_config_json();

// Immutable; encode may run on any number of threads.
class Tokenizer {
 public:
  // Reads DIRECTORY/tokenizer.json. Any tokenizer but the byte tokenizer is kBadData and says what
  // was found instead.
  static Result<Tokenizer> open(const std::string& directory);

  int64_t vocab_size() const { return kByteVocabSize; }  // ids are below it
  uint32_t end_of_text() const { return 256; }
  // Names the tokenizer in a fingerprint: equal names, equal ids for every text.
  std::string identity() const { return "byte tokenizer, end of text 256"; }

  // Appends the ids of `text`, without an end of text. Text is data: "<|endoftext|>" spelt out in
  // it is 13 bytes here, and not the token that Hugging Face's tokenizers makes of it.
  void encode(std::string_view text, std::vector<uint32_t>* ids) const;
};

}  // namespace pagoda
