#include "template/lexer.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/log.h"
#include "base/utf8.h"

namespace pagoda::jinja {

namespace {

constexpr std::string_view kSymbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "*",
                                         "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                         "]",  "{",  "}",  ".",  ",",  "|",  ":"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Line breaks as "\n", and none at the end.
std::string normal_lines(const std::string& source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(normal_lines(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag();
      if (tag == std::string::npos) {
        push_text(source_.substr(at_));
        move_to(source_.size());
        break;
      }
      RETURN_IF_ERROR(text_and_tag(tag));
    }
    push(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  size_t next_tag() const {
    for (size_t i = source_.find('{', at_); i != std::string::npos; i = source_.find('{', i + 1)) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return i;
    }
    return std::string::npos;
  }

  // The text from here to a tag, then the tag.
  Status text_and_tag(size_t tag) {
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string text = source_.substr(at_, tag - at_);
    const bool marked = sign == '-' || sign == '+';
    if (sign == '-') {
      text = stripped(text, false, true);
    } else if (sign != '+' && kind != '{') {
      const size_t line_begin = text.rfind('\n') + 1;
      const bool blank = std::all_of(text.begin() + static_cast<std::ptrdiff_t>(line_begin),
                                     text.end(), is_ascii_space);
      if ((line_begin > 0 || line_starting_) && blank) text.resize(line_begin);
    }
    push_text(std::move(text));
    move_to(tag + 2 + (marked ? 1 : 0));
    line_starting_ = false;
    if (kind == '#') return comment();
    if (kind == '%') {
      bool raw = false;
      RETURN_IF_ERROR(raw_block(&raw));
      if (raw) return Status();
    }
    return tag_tokens(kind == '{');
  }

  Status comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return error_at(line_, "a comment does not end");
    char sign = end > at_ ? source_[end - 1] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    move_to(end + 2);
    after_tag(sign);
    return Status();
  }

  // Behind "}}" (trims nothing), "%}" or "#}".
  void after_tag(char sign) {
    const size_t begin = at_;
    if (sign == '-') {
      size_t end = at_;
      while (end < source_.size()) {
        const CodePoint point = code_point_at(source_, end);
        if (!is_space(point.value)) break;
        end += point.bytes;
      }
      move_to(end);
    } else if (sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      move_to(at_ + 1);
    }
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void skip_spaces(size_t* at) const {
    while (*at < source_.size() && is_ascii_space(source_[*at])) ++*at;
  }

  bool word_at(size_t* at, std::string_view word) const {
    if (source_.compare(*at, word.size(), word) != 0) return false;
    *at += word.size();
    return true;
  }

  // {% raw %}...{% endraw %}, which begins behind its "{%".
  Status raw_block(bool* raw) {
    size_t at = at_;
    skip_spaces(&at);
    if (!word_at(&at, "raw")) return Status();
    skip_spaces(&at);
    const bool strip = word_at(&at, "-");
    if (!word_at(&at, "%}")) return Status();
    *raw = true;
    const int line = line_;
    move_to(at);
    if (strip) after_tag('-');
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      size_t end = tag + 2;
      const char sign = end < source_.size() ? source_[end] : '\0';
      if (sign == '-' || sign == '+') ++end;
      skip_spaces(&end);
      if (!word_at(&end, "endraw")) continue;
      skip_spaces(&end);
      const char end_sign = end < source_.size() ? source_[end] : '\0';
      if (end_sign == '-' || end_sign == '+') ++end;
      if (!word_at(&end, "%}")) continue;
      std::string text = source_.substr(at_, tag - at_);
      if (sign == '-') text = stripped(text, false, true);
      const size_t line_begin = text.rfind('\n') + 1;
      const bool blank = text.find_first_not_of(" \t\n\v\f\r", line_begin) == std::string::npos;
      if (sign != '-' && sign != '+' && line_begin > 0 && blank) text.resize(line_begin);
      push_text(std::move(text));
      move_to(end);
      after_tag(end_sign == '-' || end_sign == '+' ? end_sign : '\0');
      return Status();
    }
    return error_at(line, "{% raw %} has no {% endraw %}");
  }

  // From behind "{{" or "{%" to behind its end.
  Status tag_tokens(bool print) {
    const int line = line_;
    push(print ? Token::Kind::kPrintBegin : Token::Kind::kTagBegin, "");
    const std::string_view end = print ? "}}" : "%}";
    std::string brackets;
    while (at_ < source_.size()) {
      size_t at = at_;
      skip_spaces(&at);
      move_to(at);
      if (at_ == source_.size()) break;
      const char sign = source_[at_];
      const bool signed_end =
          (sign == '-' || (sign == '+' && !print)) && source_.compare(at_ + 1, 2, end) == 0;
      if (brackets.empty() && (signed_end || source_.compare(at_, 2, end) == 0)) {
        push(print ? Token::Kind::kPrintEnd : Token::Kind::kTagEnd, "");
        move_to(at_ + (signed_end ? 3 : 2));
        after_tag(signed_end ? sign : (print ? '+' : '\0'));
        return Status();
      }
      RETURN_IF_ERROR(token(&brackets));
    }
    return error_at(line, print ? "\"{{\" has no \"}}\"" : "\"{%\" has no \"%}\"");
  }

  Status token(std::string* brackets) {
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (c == '"' || c == '\'') return string();
    if (begins_name(c)) {
      size_t end = at_;
      while (end < source_.size() && (begins_name(source_[end]) || is_digit(source_[end]))) ++end;
      push(Token::Kind::kName, source_.substr(at_, end - at_));
      move_to(end);
      return Status();
    }
    for (const std::string_view symbol : kSymbols) {
      if (source_.compare(at_, symbol.size(), symbol) != 0) continue;
      RETURN_IF_ERROR(count_brackets(c, brackets));
      push(Token::Kind::kSymbol, std::string(symbol));
      move_to(at_ + symbol.size());
      return Status();
    }
    return error_at(line_, "unexpected character \"" + printable(std::string(1, c)) + "\"");
  }

  Status count_brackets(char c, std::string* open) {
    const size_t opening = std::string_view("([{").find(c);
    const size_t closing = std::string_view(")]}").find(c);
    if (opening != std::string_view::npos) *open += ")]}"[opening];
    if (closing == std::string_view::npos) return Status();
    if (open->empty() || open->back() != c) {
      return error_at(line_, std::string("unexpected \"") + c + "\"");
    }
    open->pop_back();
    return Status();
  }

  Status number() {
    size_t end = at_;
    bool real = false;
    std::string digits;
    const auto take_digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) {
        if (source_[end] != '_') digits += source_[end];
        ++end;
      }
    };
    take_digits();
    const auto digit_at = [&](size_t at) { return at < source_.size() && is_digit(source_[at]); };
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && source_[end] == '.' && digit_at(end + 1)) {
      real = true;
      digits += source_[end++];
      take_digits();
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const bool sign =
          end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+');
      if (digit_at(end + (sign ? 2 : 1))) {
        real = true;
        digits += 'e';
        if (sign && source_[end + 1] == '-') digits += '-';
        end += sign ? 2 : 1;
        take_digits();
      }
    }
    const char* last = digits.data() + digits.size();
    double value = 0;
    int64_t whole = 0;
    const auto parsed = real ? std::from_chars(digits.data(), last, value)
                             : std::from_chars(digits.data(), last, whole);
    if (parsed.ec != std::errc() || parsed.ptr != last ||
        (!real && digits.size() > 1 && digits[0] == '0')) {
      return error_at(line_, "\"" + printable(digits) + "\" is no number that is known here");
    }
    push(Token::Kind::kConstant, digits);
    tokens_.back().value = real ? Value(value) : Value(whole);
    move_to(end);
    return Status();
  }

  Status string() {
    const char quote = source_[at_];
    const int line = line_;
    std::string text;
    size_t at = at_ + 1;
    for (; at < source_.size() && source_[at] != quote; ++at) {
      if (source_[at] != '\\') {
        text += source_[at];
        continue;
      }
      if (++at == source_.size()) break;
      if (!escape(&at, &text)) return error_at(line, "a string has a malformed escape");
    }
    if (at == source_.size()) return error_at(line, "a string does not end");
    push(Token::Kind::kConstant, "string");
    tokens_.back().value = Value(std::move(text));
    move_to(at + 1);
    return Status();
  }

  // `at` is behind the backslash, and at the last byte of the escape afterwards.
  bool escape(size_t* at, std::string* text) const {
    const char c = source_[*at];
    constexpr std::string_view kNames = "abfnrtv\\'\"", kBytes = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      *text += kBytes[known];
      return true;
    }
    if (c == '\n') return true;
    if (c == 'N') return false;
    int base = 16;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    size_t first = *at + 1;
    if (c >= '0' && c <= '7') {
      base = 8;
      first = *at;
      while (digits < 3 && first + digits < source_.size() && source_[first + digits] >= '0' &&
             source_[first + digits] <= '7') {
        ++digits;
      }
    }
    if (digits == 0) {
      *text += '\\';
      *text += c;
      return true;
    }
    if (first + digits > source_.size()) return false;
    uint32_t value = 0;
    const char* end = source_.data() + first + digits;
    const auto parsed = std::from_chars(source_.data() + first, end, value, base);
    if (parsed.ec != std::errc() || parsed.ptr != end) return false;
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return false;
    append_utf8(value, text);
    *at = first + digits - 1;
    return true;
  }

  void push(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, line_, std::move(text), Value()});
  }
  void push_text(std::string text) {
    if (!text.empty()) push(Token::Kind::kText, std::move(text));
  }
  void move_to(size_t at) {
    const auto from = source_.begin() + static_cast<std::ptrdiff_t>(at_);
    line_ +=
        static_cast<int>(std::count(from, source_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    at_ = at;
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> divide(const std::string& source) { return Lexer(source).run(); }

bool is_space(uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::string stripped(const std::string& text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const CodePoint point = code_point_at(text, begin);
    if (!is_space(point.value)) break;
    begin += point.bytes;
  }
  while (right && begin < end) {
    const CodePoint point = code_point_before(text, end);
    if (!is_space(point.value)) break;
    end -= point.bytes;
  }
  return text.substr(begin, end - begin);
}

Status error_at(int line, const std::string& why) {
  return Status(Exit::kBadData, strf("line %d: ", line) + why);
}

}  // namespace pagoda::jinja
