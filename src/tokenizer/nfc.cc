#include "tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/utf8.h"

namespace pagoda {

namespace {

// Code points with a combining class or a decomposition that came after Unicode 9, whose data
// Hugging Face tokenizers normalizes with. For it, and so for the ids models were trained on, they
// are letters like any other.
constexpr uint32_t kAfterUnicode9[][2] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}};

bool is_after_unicode_9(uint32_t value) {
  if (value < kAfterUnicode9[0][0]) return false;
  return std::any_of(std::begin(kAfterUnicode9), std::end(kAfterUnicode9),
                     [value](const auto& range) { return value >= range[0] && value <= range[1]; });
}

int combining_class(uint32_t value) {
  if (is_after_unicode_9(value)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(value))->combining_class;
}

// The primary composite of a pair, or -1.
int32_t compose(uint32_t first, uint32_t second) {
  utf8proc_int32_t pair[3] = {static_cast<int32_t>(first), static_cast<int32_t>(second), 0};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const bool composed = utf8proc_normalize_utf32(pair, 2, options) == 1;
  return composed && !is_after_unicode_9(static_cast<uint32_t>(pair[0])) ? pair[0] : -1;
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
  if (is_after_unicode_9(value)) return out->push_back({value, 0});
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
  int last_class = 0;      // class of the code points between it and the next part; 0: none
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
