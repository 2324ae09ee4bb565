#include "tokenizer/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace pagoda {

namespace {

constexpr uint32_t kFirstMoved = 0x100;

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, 0x144> bytes;  // by code point; -1: none
};

constexpr bool prints(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  uint32_t next = kFirstMoved;
  for (int byte = 0; byte < 256; ++byte) {
    const uint32_t code_point = prints(byte) ? static_cast<uint32_t>(byte) : next++;
    append_utf8(code_point, &alphabet.characters[byte]);
    alphabet.bytes[code_point] = byte;
  }
  return alphabet;
}

const Alphabet& alphabet() {
  static const Alphabet kAlphabet = make_alphabet();
  return kAlphabet;
}

}  // namespace

const std::string& byte_character(uint8_t byte) { return alphabet().characters[byte]; }

std::string spell_bytes(std::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) spelling += byte_character(static_cast<uint8_t>(byte));
  return spelling;
}

void append_spelt_bytes(std::string_view spelling, std::string* out) {
  const size_t before = out->size();
  for (size_t i = 0; i < spelling.size();) {
    const CodePoint point = code_point_at(spelling, i);
    const int byte = point.value < alphabet().bytes.size() ? alphabet().bytes[point.value] : -1;
    if (byte < 0) {
      out->resize(before);
      *out += spelling;
      return;
    }
    out->push_back(static_cast<char>(byte));
    i += point.bytes;
  }
}

}  // namespace pagoda
