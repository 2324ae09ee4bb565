// Added tokens are texts that become one token before anything else looks at them. They work as in
// Hugging Face tokenizers (tokenizers/src/tokenizer/added_vocabulary.rs). Tokens with `normalized`
// false are looked for in the text as it is, the others, normalized themselves, in the normalized
// text. If several match at one place the longest is taken.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/aligned_text.h"

namespace pagoda {

struct AddedToken {
  uint32_t id = 0;
  std::string content;       // at most kMaxAddedTokenBytes
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the white space before it too
  bool rstrip = false;       // takes the white space behind it too
  bool normalized = true;
  bool special = false;  // left out when decoding without special tokens
  // The text that is looked for, and that decoding shows: the content, normalized if `normalized`.
  std::string spelling = {};
};

inline constexpr size_t kMaxAddedTokenBytes = 512;

// A part of a text: a token, or a text without any.
struct TextPart {
  TokenRange range;
  const AddedToken* token;  // nullptr: text
};

// Finds one group of tokens in texts. Immutable; any number of threads.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // Finds the tokens with this `normalized`; empty spellings are never found. REQUIRES: the tokens
  // outlive the finder.
  AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized);

  // Appends the parts of `text` in order, none of them empty. REQUIRES: well-formed UTF-8.
  void split(std::string_view text, std::vector<TextPart>* parts) const;

 private:
  // The token with the longest spelling that `text` has at `at`, or nullptr.
  const AddedToken* match_at(std::string_view text, size_t at) const;
  std::vector<const AddedToken*> sorted_;  // by spelling
  uint32_t first_of_byte_[257] = {};       // spellings that begin with byte b: [b, b + 1)
};

}  // namespace pagoda
