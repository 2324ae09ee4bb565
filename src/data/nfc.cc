#include "data/nfc.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"

namespace pagoda {

namespace {

int combining_class(uint32_t value) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(value))->combining_class;
}

// The primary composite of a pair, or -1.
int32_t compose(uint32_t first, uint32_t second) {
  utf8proc_int32_t pair[3] = {static_cast<int32_t>(first), static_cast<int32_t>(second), 0};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  return utf8proc_normalize_utf32(pair, 2, options) == 1 ? pair[0] : -1;
}

// Starters whose form is themselves and that never come second in a composition (letters and
// punctuation of the common scripts; a part of NFC_Quick_Check=Yes with combining class 0).
bool is_inert(uint32_t c) {
  const auto in = [c](uint32_t low, uint32_t high) { return c >= low && c <= high; };
  return c < 0x300 || in(0x388, 0x482) || in(0x2010, 0x2027) || in(0x3001, 0x3029) ||
         in(0x30A0, 0x30FF) || in(0x3041, 0x3096) || in(0x4E00, 0x9FFF) || in(0xAC00, 0xD7A3) ||
         in(0xFF01, 0xFFEE);
}

void append_decomposed(uint32_t value, std::vector<ChangedCodePoint>* out) {
  utf8proc_int32_t parts[16];
  int last_boundclass = 0;
  const auto count = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(value), parts, 16,
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &last_boundclass);
  CHECK(count > 0 && count <= 16, "U+%04X", value);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    out->push_back({static_cast<uint32_t>(parts[i]), i > 0 ? 1 : 0});
  }
}

// Canonical decomposition in canonical order.
std::vector<ChangedCodePoint> decompose(std::string_view text) {
  std::vector<ChangedCodePoint> points;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    append_decomposed(point.value, &points);
    i += point.bytes;
  }
  for (size_t i = 0; i < points.size();) {
    size_t end = i;
    while (end < points.size() && combining_class(points[end].value) != 0) ++end;
    std::stable_sort(points.begin() + i, points.begin() + end, [](const auto& a, const auto& b) {
      return combining_class(a.value) < combining_class(b.value);
    });
    i = end + 1;
  }
  return points;
}

}  // namespace

bool surely_nfc(std::string_view text) {
  // Bytes below CC lead or continue nothing above U+02FF.
  const auto plain = [](char byte) { return static_cast<unsigned char>(byte) < 0xCC; };
  if (std::all_of(text.begin(), text.end(), plain)) return true;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    if (!is_inert(point.value)) return false;
    i += point.bytes;
  }
  return true;
}

std::vector<ChangedCodePoint> nfc(std::string_view text) {
  const std::vector<ChangedCodePoint> parts = decompose(text);
  std::vector<ChangedCodePoint> out;
  out.reserve(parts.size());
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t starter = kNone;  // in out
  int last_class = 0;      // of what stands between it and the next part; 0: nothing
  for (const ChangedCodePoint& part : parts) {
    const int part_class = combining_class(part.value);
    const bool blocked = last_class != 0 && last_class >= part_class;
    const int32_t composite =
        starter == kNone || blocked ? -1 : compose(out[starter].value, part.value);
    if (composite >= 0) {
      out[starter] = {static_cast<uint32_t>(composite), out[starter].change + part.change - 1};
      continue;
    }
    if (part_class == 0) starter = out.size();
    last_class = part_class;
    out.push_back(part);
  }
  return out;
}

}  // namespace pagoda
