#include "base/utf8.h"

namespace pagoda {

namespace {

// What begins at text[i]: `bytes` that belong together, and whether they are a whole sequence. Of
// an ill-formed one, `bytes` is its maximal subpart, at least 1.
struct Sequence {
  size_t bytes;
  bool whole;
};

Sequence sequence_at(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) -> unsigned {
    return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u;
  };
  const auto in = [](unsigned b, unsigned low, unsigned high) { return b >= low && b <= high; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (!in(lead, 0xC2, 0xF4)) return {1, false};
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (!in(byte(1), low, high)) return {1, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t k = 2; k < length; ++k) {
    if (!in(byte(k), 0x80, 0xBF)) return {k, false};
  }
  return {length, true};
}

}  // namespace

size_t first_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Sequence sequence = sequence_at(text, i);
    if (!sequence.whole) return i;
    i += sequence.bytes;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Sequence sequence = sequence_at(text, i);
    out += sequence.whole ? text.substr(i, sequence.bytes) : kReplacementCharacter;
    i += sequence.bytes;
  }
  return out;
}

CodePoint code_point_at(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[i + k]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const uint32_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint32_t value = lead & (0xFFu >> (bytes + 1));
  for (uint32_t k = 1; k < bytes; ++k) value = value << 6 | (byte(k) & 0x3F);
  return {value, bytes};
}

CodePoint code_point_before(std::string_view text, size_t i) {
  --i;
  while (is_utf8_continuation(text[i])) --i;
  return code_point_at(text, i);
}

void append_utf8(uint32_t code_point, std::string* out) {
  const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  const auto tail = [&](int shift) { put(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6), tail(0);
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12), tail(6), tail(0);
  } else {
    put(0xF0 | code_point >> 18), tail(12), tail(6), tail(0);
  }
}

}  // namespace pagoda
