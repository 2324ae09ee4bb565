// Text to token ids. Here: the byte tokenizer, whose ids 0..255 are the bytes and 256 ends a text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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

// Bytes of the text a token came from.
struct TokenRange {
  uint32_t begin, end;
};

// Immutable; encode may run on any number of threads.
class Tokenizer {
 public:
  // Reads DIRECTORY/tokenizer.json. Any tokenizer but bytes with added tokens is kBadData and says
  // what was found instead.
  static Result<Tokenizer> open(const std::string& directory);

  int64_t vocab_size() const { return 256 + static_cast<int64_t>(added_.size()); }
  uint32_t end_of_text() const { return 256; }
  std::optional<uint32_t> begin_of_text() const { return std::nullopt; }
  // Names the tokenizer in a fingerprint: equal names, equal ids for every text.
  std::string identity() const;

  // Appends the ids of `text`, without an end of text; added tokens spelt in it become their ids.
  void encode(std::string_view text, std::vector<uint32_t>* ids,
              std::vector<TokenRange>* ranges = nullptr) const;
  std::optional<uint32_t> find(std::string_view token) const;
  std::string decode(std::span<const uint32_t> ids, bool skip_special) const;

 private:
  std::vector<std::string> added_;  // of ids 256, 257, ...
};

}  // namespace pagoda
