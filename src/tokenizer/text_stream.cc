#include "tokenizer/text_stream.h"

#include <string_view>
#include <utility>

#include "base/utf8.h"

namespace pagoda {

TextStream::TextStream(Tokenizer tokenizer, std::vector<uint32_t> before)
    : tokenizer_(std::move(tokenizer)), tokens_(std::move(before)) {
  text_ = tokenizer_.decode(tokens_, true);
  given_ = text_.size();
  if (whole_end() == text_.size()) settled_ = tokens_.size();
}

std::string TextStream::take(size_t end) {
  if (end <= given_) return "";
  const std::string text = text_.substr(given_, end - given_);
  given_ = end;
  return text;
}

// Replacement characters at the end may be the beginning of a character.
size_t TextStream::whole_end() const {
  size_t end = text_.size();
  while (std::string_view(text_).substr(0, end).ends_with(kReplacementCharacter)) {
    end -= kReplacementCharacter.size();
  }
  return end;
}

std::string TextStream::add(uint32_t token) {
  tokens_.push_back(token);
  text_ = tokenizer_.decode(tokens_, true);
  std::string piece = take(whole_end());
  if (!piece.empty() && given_ == text_.size()) forget();
  return piece;
}

// Keeps the tokens since the text was settled the last time. Tokens without a text of their own (a
// special one; a space that a text does not begin with) would not keep the next from being taken
// for a text's first, which loses its space.
void TextStream::forget() {
  const std::vector<uint32_t> newest(tokens_.begin() + static_cast<ptrdiff_t>(settled_),
                                     tokens_.end());
  std::string text = tokenizer_.decode(newest, true);
  if (text.empty()) return;
  tokens_ = newest;
  text_ = std::move(text);
  given_ = text_.size();
  settled_ = tokens_.size();
}

std::string TextStream::finish() { return take(text_.size()); }

std::string continuation_text(const Tokenizer& tokenizer, const std::vector<uint32_t>& prompt,
                              const std::vector<uint32_t>& continuation) {
  std::vector<uint32_t> all = prompt;
  all.insert(all.end(), continuation.begin(), continuation.end());
  const size_t begin = tokenizer.decode(prompt, true).size();
  const std::string text = tokenizer.decode(all, true);
  return begin < text.size() ? text.substr(begin) : "";
}

}  // namespace pagoda
