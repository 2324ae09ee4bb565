// Text to token ids and back: the byte pair encodings of Hugging Face folders, byte-level (GPT-2,
// Qwen, OLMoE, SmolLM) and SentencePiece-style with byte fallback (Mixtral).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tokenizer/aligned_text.h"

namespace pagoda {

inline constexpr int64_t kByteVocabSize = 257;

// The byte tokenizer as a tokenizer.json of Hugging Face tokenizers: byte-level BPE without merges,
// its vocabulary the GPT-2 byte alphabet in byte order, and "<|endoftext|>" = 256 as added token.
std::string byte_tokenizer_json();
// The tokenizer_config.json that goes with it.
std::string byte_tokenizer_config_json();

// Immutable; cheap to copy. Everything may run on any number of threads.
class Tokenizer {
 public:
  // Reads DIRECTORY/tokenizer.json (tokenizer/tokenizer_json.h). The token that ends a text is
  // "eos_token" of tokenizer_config.json, else "eos_token_id" of generation_config.json or
  // config.json (the first of a list), else the only special token. Files may be links, as in the
  // hub's cache. kNoInput when tokenizer.json is missing or a file's link leads nowhere, else
  // kBadData with one line that names the file and the place in it.
  static Result<Tokenizer> open(const std::string& directory);

  int64_t vocab_size() const;    // 1 + the largest id
  uint32_t end_of_text() const;
  // The token that the post-processor (TemplateProcessing) puts before a text; encode does not add
  // it.
  std::optional<uint32_t> begin_of_text() const;
  // Names the tokenizer in a fingerprint: equal names, equal ids for every text.
  std::string identity() const;

  // Appends the ids of `text` as Hugging Face tokenizers do without add_special_tokens: added
  // tokens spelt in the text become their ids. `ranges`, if wanted, gets for each id the bytes of
  // the text it came from, in whole characters and with the spaces that belong to it (trim_offsets
  // is not followed); tokens of one character share its range. Bytes that are not UTF-8 become the
  // tokens of those bytes. kBadData when a pattern of tokenizer.json gives up on the text
  // (tokenizer/pattern.h) or its normalizer makes it many times longer (tokenizer/normalizer.h);
  // callers add the text's origin and the remedy, and must discard the appended ids. REQUIRES: text
  // shorter than 4 GiB.
  Status encode(std::string_view text, std::vector<uint32_t>* ids,
                std::vector<TokenRange>* ranges = nullptr) const;

  // The text of `ids`; with skip_special, without special added tokens. Ids that no token has are
  // passed over, bytes that are not UTF-8 become U+FFFD.
  std::string decode(std::span<const uint32_t> ids, bool skip_special) const;

  // The texts of special added tokens, none of them empty.
  std::vector<std::string> special_tokens() const;

  // The id of a token as tokenizer.json spells it ("<|im_end|>", "\u0120the").
  std::optional<uint32_t> find(std::string_view token) const;

 private:
  class Engine;
  explicit Tokenizer(std::shared_ptr<const Engine> engine) : engine_(std::move(engine)) {}
  std::shared_ptr<const Engine> engine_;
};

}  // namespace pagoda
