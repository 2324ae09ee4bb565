// UTF-8 as the Unicode Standard defines it (section 3.9, table 3-7): no overlong forms, no
// surrogates, nothing above U+10FFFF.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pagoda {

// U+FFFD, in place of what is not well-formed.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Offset of the first byte that begins no well-formed sequence, or npos when all is well.
size_t first_invalid_utf8(std::string_view text);

// A copy with U+FFFD in place of each maximal subpart of an ill-formed sequence (section 3.9,
// "U+FFFD substitution of maximal subparts").
std::string replace_invalid_utf8(std::string_view text);

struct CodePoint {
  uint32_t value;
  uint32_t bytes;  // length of its sequence
};

// The code point whose sequence begins at text[i]. REQUIRES: it is well-formed.
CodePoint code_point_at(std::string_view text, size_t i);
// The code point whose sequence ends before text[i]. REQUIRES: i > 0, text[0, i) is well-formed.
CodePoint code_point_before(std::string_view text, size_t i);

// True for the bytes 80..BF, which continue a sequence.
inline bool is_utf8_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// REQUIRES: a Unicode scalar value.
void append_utf8(uint32_t code_point, std::string* out);

}  // namespace pagoda
