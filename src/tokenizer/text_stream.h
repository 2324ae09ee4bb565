// Turns tokens into text as they come. A character whose bytes are spread over several tokens
// appears when it is whole. Byte fallback (tokenizer/decoder.h) replaces a whole run of bytes when
// one byte in it is invalid; here the characters that were already returned stay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace pagoda {

class TextStream {
 public:
  // Returns the text behind `before` (a prompt), which is not repeated but decides whether the
  // first word keeps its space. Special tokens have no text.
  TextStream(Tokenizer tokenizer, std::vector<uint32_t> before);

  // The text that is certain now and was not before.
  std::string add(uint32_t token);
  // Returns the text that was held back; U+FFFD stands for bytes that became no character.
  std::string finish();

 private:
  std::string take(size_t end);
  size_t whole_end() const;
  void forget();

  Tokenizer tokenizer_;
  // The newest tokens, on which the text of the next ones depends: settled_ tokens whose text was
  // returned, then the tokens since.
  std::vector<uint32_t> tokens_;
  size_t settled_ = 0;
  std::string text_;   // of tokens_
  size_t given_ = 0;   // bytes of text_ that were returned or are the prompt's
};

// The text that continues `prompt`.
std::string continuation_text(const Tokenizer& tokenizer, const std::vector<uint32_t>& prompt,
                              const std::vector<uint32_t>& continuation);

}  // namespace pagoda
