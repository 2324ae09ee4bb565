#include "base/terminal_text.h"

#include <cstdio>

#include "base/check.h"
#include "base/log.h"
#include "base/utf8.h"

namespace pagoda {
namespace {

// Controls, and marks that turn the direction of what is written after or between them.
bool is_obeyed(uint32_t c) {
  const auto in = [c](uint32_t low, uint32_t high) { return c >= low && c <= high; };
  return c < 0x20 || in(0x7F, 0x9F) || c == 0x061C || in(0x200E, 0x200F) || in(0x202A, 0x202E) ||
         in(0x2066, 0x2069);
}

// The second is a spelling of JSON, too, which shows controls below 0x20 itself.
std::string shown(uint32_t code_point) {
  return strf(code_point < 0x20 ? "\\x%02x" : "\\u%04x", code_point);
}

// Calls add(piece, size of its bytes in `text`) for one character after the other.
template <typename Add>
void show(std::string_view text, const std::string_view as_it_is, const Add& add) {
  size_t valid = first_invalid_utf8(text);
  for (size_t i = 0; i < text.size();) {
    if (i == valid) {
      if (!add(strf("\\x%02x", static_cast<unsigned char>(text[i++])))) return;
      const size_t next = first_invalid_utf8(text.substr(i));
      valid = next == std::string_view::npos ? next : i + next;
      continue;
    }
    const CodePoint c = code_point_at(text, i);
    const std::string_view bytes = text.substr(i, c.bytes);
    const bool stays = !is_obeyed(c.value) || as_it_is.find(bytes) != std::string_view::npos;
    if (!add(stays ? std::string(bytes) : shown(c.value))) return;
    i += c.bytes;
  }
}

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  show(text, "\n\t", [&](const std::string& piece) {
    out += piece;
    return true;
  });
  return out;
}

std::string printable(const std::string& text, size_t max_length) {
  std::string out;
  show(text, "", [&](const std::string& piece) {
    const bool more = out.size() < max_length;
    out += more ? piece : "...";
    return more;
  });
  return out;
}

void print_result(std::string_view text) {
  const std::string shown = terminal_text(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

}  // namespace pagoda
