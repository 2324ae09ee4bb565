#include "template/letters.h"

#include <utf8proc.h>

#include <cstring>
#include <string_view>

#include "base/utf8.h"
#include "template/lexer.h"

namespace pagoda::jinja {

namespace {

uint32_t upper_point(uint32_t c) {
  return static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
uint32_t lower_point(uint32_t c) {
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}
bool is_cased(uint32_t c) { return upper_point(c) != c || lower_point(c) != c; }

constexpr uint32_t kSharpS = 0xDF;

void append_upper(uint32_t c, std::string* out) {
  if (c == kSharpS) {
    *out += "SS";
  } else {
    append_utf8(upper_point(c), out);
  }
}

// Calls visit(code point) for each.
template <typename Visit>
void for_each_point(const std::string& text, const Visit& visit) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    visit(point.value);
    at += point.bytes;
  }
}

}  // namespace

std::string upper(const std::string& text) {
  std::string out;
  for_each_point(text, [&](uint32_t c) { append_upper(c, &out); });
  return out;
}

std::string lower(const std::string& text) {
  std::string out;
  for_each_point(text, [&](uint32_t c) { append_utf8(lower_point(c), &out); });
  return out;
}

std::string capitalized(const std::string& text) {
  std::string out;
  bool first = true;
  for_each_point(text, [&](uint32_t c) {
    if (first && c == kSharpS) {
      out += "Ss";
    } else {
      append_utf8(first ? upper_point(c) : lower_point(c), &out);
    }
    first = false;
  });
  return out;
}

std::string titled(const std::string& text) {
  std::string out;
  bool in_word = false;
  for_each_point(text, [&](uint32_t c) {
    append_utf8(in_word ? lower_point(c) : upper_point(c), &out);
    in_word = is_cased(c);
  });
  return out;
}

std::string titled_words(const std::string& text) {
  std::string out;
  bool in_word = false;
  for_each_point(text, [&](uint32_t c) {
    if (in_word) {
      append_utf8(lower_point(c), &out);
    } else {
      append_upper(c, &out);
    }
    const bool ascii = c < 0x80;
    in_word = !is_space(c) && !(ascii && std::string_view("-({[<").find(static_cast<char>(c)) !=
                                             std::string_view::npos);
  });
  return out;
}

Status for_each_line(std::string_view text, const std::function<Status(std::string_view)>& visit) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const uint32_t c = point.value;
    const bool ends = (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    const size_t end = at;
    at += point.bytes;
    if (!ends) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    RETURN_IF_ERROR(visit(text.substr(begin, end - begin)));
    begin = at;
  }
  return begin < text.size() ? visit(text.substr(begin)) : Status();
}

size_t find_part(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::string stripped_of(const std::string& text, std::string_view set, bool left, bool right) {
  size_t begin = 0, end = text.size();
  const auto in_set = [&](size_t at, size_t bytes) {
    const std::string_view point = std::string_view(text).substr(at, bytes);
    for (size_t i = 0; i < set.size();) {
      const size_t length = code_point_at(set, i).bytes;
      if (set.substr(i, length) == point) return true;
      i += length;
    }
    return false;
  };
  while (left && begin < end) {
    const size_t bytes = code_point_at(text, begin).bytes;
    if (!in_set(begin, bytes)) break;
    begin += bytes;
  }
  while (right && begin < end) {
    const size_t bytes = code_point_before(text, end).bytes;
    if (!in_set(end - bytes, bytes)) break;
    end -= bytes;
  }
  return text.substr(begin, end - begin);
}

bool all_upper(const std::string& text) {
  bool any = false, all = true;
  for_each_point(text, [&](uint32_t c) {
    any |= is_cased(c);
    all &= !is_cased(c) || lower_point(c) != c;
  });
  return any && all;
}

bool all_lower(const std::string& text) {
  bool any = false, all = true;
  for_each_point(text, [&](uint32_t c) {
    any |= is_cased(c);
    all &= !is_cased(c) || upper_point(c) != c || c == kSharpS;
  });
  return any && all;
}

}  // namespace pagoda::jinja
