#include "template/value_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <string_view>

#include "base/utf8.h"
#include "template/compare.h"

namespace pagoda::jinja {

namespace {

bool is_printable(uint32_t point) {
  if (point == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

// What is written for a part of a text may be several times as long, so each is charged before the
// next is written.
Status for_each_part(std::string_view text, const std::function<Status(std::string_view)>& visit) {
  constexpr size_t kPartBytes = 65536;
  while (!text.empty()) {
    size_t end = std::min(kPartBytes, text.size());
    while (end < text.size() && is_utf8_continuation(text[end])) ++end;
    RETURN_IF_ERROR(visit(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return Status();
}

// "\x0a", "\u2028".
void append_escape(char kind, int digits, uint32_t value, std::string* out) {
  *out += '\\';
  *out += kind;
  for (int i = digits - 1; i >= 0; --i) *out += "0123456789abcdef"[value >> (4 * i) & 15];
}

// What repr() writes between the quotes.
std::string quoted(std::string_view text, char quote) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const char c = text[at];
    if (c == quote || c == '\\') out += '\\';
    if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(point.value)) {
      out += text.substr(at, point.bytes);
    } else if (point.value < 0x100) {
      append_escape('x', 2, point.value, &out);
    } else {
      const bool wide = point.value >= 0x10000;
      append_escape(wide ? 'U' : 'u', wide ? 8 : 4, point.value, &out);
    }
    at += point.bytes;
  }
  return out;
}

// A text that grows, each part charged before it is taken.
class ChargedText {
 public:
  explicit ChargedText(Budget& budget) : budget_(budget) {}

  std::string out;

 protected:
  Status add(const std::string& text) {
    RETURN_IF_ERROR(budget_.make(text.size()));
    out += text;
    return Status();
  }

  Budget& budget_;
};

// Writes what Python's repr() gives.
class Printer : public ChargedText {
 public:
  using ChargedText::ChargedText;

  Status print(const Value& value, int depth) {
    RETURN_IF_ERROR(budget_.spend(1));
    // Namespaces may contain themselves.
    if (depth > kMaxValueDepth) return failed("a value to print is nested too deep");
    if (value.is_none()) return add("None");
    if (const bool* flag = value.get<bool>()) return add(*flag ? "True" : "False");
    if (value.is_integer()) return add(std::to_string(value.integer()));
    if (value.is_number()) return add(real_text(value.real()));
    if (const std::string* text = value.text()) return print_text(*text);
    if (value.is_undefined()) return add("Undefined");
    if (const List* list = value.list()) return print_list(*list, depth);
    if (const Dict* dict = value.dict()) return print_pairs(dict->pairs, depth);
    if (const Namespace* space = value.space()) {
      RETURN_IF_ERROR(add("<Namespace "));
      Pairs pairs;
      for (const auto& [name, member] : space->members) {
        RETURN_IF_ERROR(budget_.make_text_item(name.size()));
        pairs.emplace_back(Value(name), member);
      }
      RETURN_IF_ERROR(print_pairs(pairs, depth));
      return add(">");
    }
    return failed(strf("%s has no text", value.a_type().c_str()));
  }

 private:
  Status print_text(const std::string& text) {
    const bool doubled =
        text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
    const char quote = doubled ? '"' : '\'';
    RETURN_IF_ERROR(add(std::string(1, quote)));
    RETURN_IF_ERROR(
        for_each_part(text, [&](std::string_view part) { return add(quoted(part, quote)); }));
    return add(std::string(1, quote));
  }

  Status print_list(const List& list, int depth) {
    if (list.kind != Sequence::kList && list.kind != Sequence::kTuple) {
      return failed("a generator or a view has no text; make it a list");
    }
    const bool tuple = list.kind == Sequence::kTuple;
    RETURN_IF_ERROR(add(tuple ? "(" : "["));
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) RETURN_IF_ERROR(add(", "));
      RETURN_IF_ERROR(print(list.items[i], depth + 1));
    }
    if (tuple && list.items.size() == 1) RETURN_IF_ERROR(add(","));
    return add(tuple ? ")" : "]");
  }

  Status print_pairs(const Pairs& pairs, int depth) {
    RETURN_IF_ERROR(add("{"));
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0) RETURN_IF_ERROR(add(", "));
      RETURN_IF_ERROR(print(pairs[i].first, depth + 1));
      RETURN_IF_ERROR(add(": "));
      RETURN_IF_ERROR(print(pairs[i].second, depth + 1));
    }
    return add("}");
  }
};

std::string json_real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return real_text(value);
}

// What JSON has between the quotes.
std::string json_text(std::string_view text, bool ascii) {
  constexpr std::string_view kNames = "bfnrt\"\\", kBytes = "\b\f\n\r\t\"\\";
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const size_t known = kBytes.find(text[at]);
    if (known != std::string_view::npos) {
      out += '\\';
      out += kNames[known];
    } else if (point.value < 0x20 || (ascii && point.value > 0x7E && point.value < 0x10000)) {
      append_escape('u', 4, point.value, &out);
    } else if (ascii && point.value >= 0x10000) {
      const uint32_t rest = point.value - 0x10000;
      append_escape('u', 4, 0xD800 + (rest >> 10), &out);
      append_escape('u', 4, 0xDC00 + (rest & 0x3FF), &out);
    } else {
      out += text.substr(at, point.bytes);
    }
    at += point.bytes;
  }
  return out;
}

class JsonWriter : public ChargedText {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style) : ChargedText(budget), style_(style) {}

  Status write(const Value& value, int level) {
    RETURN_IF_ERROR(budget_.spend(1));
    if (value.is_none()) return add("null");
    if (const bool* flag = value.get<bool>()) return add(*flag ? "true" : "false");
    if (value.is_integer()) return add(std::to_string(value.integer()));
    if (value.is_number()) return add(json_real(value.real()));
    if (const std::string* text = value.text()) return write_text(*text);
    if (const Dict* dict = value.dict()) return write_dict(*dict, level);
    const List* list = value.list();
    if (list != nullptr && (list->kind == Sequence::kList || list->kind == Sequence::kTuple)) {
      return write_list(*list, level);
    }
    if (value.is_undefined()) return failed(value.undefined_what() + ", so it is no JSON");
    return failed(strf("%s is no JSON", value.a_type().c_str()));
  }

 private:
  Status new_line(int level) {
    if (!style_.lines) return Status();
    RETURN_IF_ERROR(add("\n"));
    for (int i = 0; i < level; ++i) RETURN_IF_ERROR(add(style_.indent));
    return Status();
  }

  Status write_text(const std::string& text) {
    RETURN_IF_ERROR(add("\""));
    RETURN_IF_ERROR(for_each_part(
        text, [&](std::string_view part) { return add(json_text(part, style_.ascii)); }));
    return add("\"");
  }

  Status write_list(const List& list, int level) {
    RETURN_IF_ERROR(add("["));
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) RETURN_IF_ERROR(add(style_.comma));
      RETURN_IF_ERROR(new_line(level + 1));
      RETURN_IF_ERROR(write(list.items[i], level + 1));
    }
    if (!list.items.empty()) RETURN_IF_ERROR(new_line(level));
    return add("]");
  }

  Result<std::string> key_text(const Value& key) {
    if (const std::string* text = key.text()) return *text;
    if (key.is_none()) return std::string("null");
    if (const bool* flag = key.get<bool>()) return std::string(*flag ? "true" : "false");
    if (key.is_integer()) return std::to_string(key.integer());
    if (key.is_number()) return json_real(key.real());
    return failed(strf("%s is no key of JSON", key.a_type().c_str()));
  }

  Status write_dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> pairs;
    for (const auto& pair : dict.pairs) pairs.push_back(&pair);
    if (style_.sorted) {
      RETURN_IF_ERROR(budget_.spend(16 * pairs.size()));
      for (const auto* pair : pairs) {
        if (pair->first.text() == nullptr) return failed("only keys that are strings are sorted");
      }
      std::sort(pairs.begin(), pairs.end(),
                [](const auto* a, const auto* b) { return *a->first.text() < *b->first.text(); });
    }
    RETURN_IF_ERROR(add("{"));
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0) RETURN_IF_ERROR(add(style_.comma));
      RETURN_IF_ERROR(new_line(level + 1));
      ASSIGN_OR_RETURN(const std::string key, key_text(pairs[i]->first));
      RETURN_IF_ERROR(write_text(key));
      RETURN_IF_ERROR(add(style_.colon));
      RETURN_IF_ERROR(write(pairs[i]->second, level + 1));
    }
    if (!pairs.empty()) RETURN_IF_ERROR(new_line(level));
    return add("}");
  }

  const JsonStyle& style_;
};

}  // namespace

Result<std::string> text_of(Budget& budget, const Value& value) {
  if (const std::string* text = value.text()) {
    RETURN_IF_ERROR(budget.make(text->size()));
    return *text;
  }
  if (value.is_undefined()) return std::string();
  Printer printer(budget);
  RETURN_IF_ERROR(printer.print(value, 0));
  return std::move(printer.out);
}

Result<std::string> json_of(Budget& budget, const Value& value, const JsonStyle& style) {
  JsonWriter writer(budget, style);
  RETURN_IF_ERROR(writer.write(value, 0));
  return std::move(writer.out);
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);  // "-1.25e+07"
  const size_t at = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(at + 1));
  std::string sign = value < 0 || std::signbit(value) ? "-" : "", digits;
  for (const char c : scientific.substr(0, at)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  if (exponent < -4 || exponent >= 16) {
    const std::string rest = digits.size() > 1 ? "." + digits.substr(1) : "";
    return sign + digits[0] + rest + strf("e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) {
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  const std::string fraction = digits.substr(whole);
  return sign + digits.substr(0, whole) + "." + (fraction.empty() ? "0" : fraction);
}

}  // namespace pagoda::jinja
