// The printable characters that byte-level vocabularies spell bytes with (Radford et al. 2019, the
// GPT-2 code): a byte that Latin-1 prints is itself, the others are U+0100, U+0101, ... in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pagoda {

// The character of a byte, as UTF-8 of one or two bytes.
const std::string& byte_character(uint8_t byte);

// `bytes` spelt in the alphabet.
std::string spell_bytes(std::string_view bytes);

// Appends the bytes that `spelling` stands for; one with a character outside the alphabet stands
// for itself. REQUIRES: well-formed UTF-8.
void append_spelt_bytes(std::string_view spelling, std::string* out);

}  // namespace pagoda
