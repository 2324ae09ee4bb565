// Text of tokens as they come. A character whose bytes are spread over tokens appears when it is
// whole. Byte fallback takes all characters of a run of bytes back when one after them is spoilt;
// here they stay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace pagoda {

class TextStream {
 public:
  // What follows `before` (a prompt), whose own text is not repeated; it decides whether a first
  // word keeps its space. Special tokens have no text.
  TextStream(Tokenizer tokenizer, std::vector<uint32_t> before);

  // The text that is certain now and was not before.
  std::string add(uint32_t token);
  // What was held back; U+FFFD stands for bytes that became no character.
  std::string finish();

 private:
  std::string take(size_t end);
  size_t whole_end() const;
  void forget();

  Tokenizer tokenizer_;
  // The newest tokens, as many as decide what text the next ones have: the first settled_ of them,
  // whose text was returned, and those since.
  std::vector<uint32_t> tokens_;
  size_t settled_ = 0;
  std::string text_;   // of tokens_
  size_t given_ = 0;   // bytes of text_ that were returned or are the prompt's
};

// The text that continues `prompt`.
std::string continuation_text(const Tokenizer& tokenizer, const std::vector<uint32_t>& prompt,
                              const std::vector<uint32_t>& continuation);

}  // namespace pagoda
