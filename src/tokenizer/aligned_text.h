// A text that normalizers change, with the bytes of the original that each of its bytes came from.
// The alignments are those of Hugging Face tokenizers (tokenizers/src/tokenizer/normalizer.rs).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pagoda {

// Bytes [begin, end) of a text.
struct TokenRange {
  uint32_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

// A code point of a changed text. `change` tells how many code points of the text before it
// replaces: 0 one, 1 none (it is new), -n one and n more after it.
struct ChangedCodePoint {
  uint32_t value;
  int32_t change;
};

// One thread at a time.
class AlignedText {
 public:
  // A part of an original that begins at its byte `begin`. Without `tracked`, origin() may not be
  // asked and costs nothing.
  AlignedText(std::string_view part, uint32_t begin, bool tracked)
      : text_(part), begin_(begin), tracked_(tracked) {}

  std::string_view text() const { return text_; }
  bool empty() const { return text_.empty(); }
  // Whether it begins where the original begins.
  bool at_start() const { return begin_ == 0; }
  // The bytes of the original that [begin, end) of the text came from, in whole characters.
  // REQUIRES: tracked, begin < end <= text().size().
  TokenRange origin(size_t begin, size_t end) const;
  // [begin, end) of the text as a text of its own. REQUIRES: whole characters, begin < end.
  AlignedText slice(size_t begin, size_t end) const;

  // Puts `content` before the text; it comes from the first character. REQUIRES: not empty.
  void prepend(std::string_view content);
  // Bytes of the text that replace() would make.
  size_t replaced_bytes(const std::vector<TokenRange>& matches, std::string_view content) const;
  // Puts `content` in place of each match, from left to right; it comes from the match's last
  // character.
  void replace(const std::vector<TokenRange>& matches, std::string_view content);
  // Replaces the whole text.
  void transform(const std::vector<ChangedCodePoint>& changed);

 private:
  void begin_tracking();
  std::string text_;
  std::vector<TokenRange> origin_;  // of each byte, when tracked and changed; else empty
  uint32_t begin_;
  bool tracked_;
};

}  // namespace pagoda
