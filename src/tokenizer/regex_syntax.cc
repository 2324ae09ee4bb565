#include "tokenizer/regex_syntax.h"

#include <cctype>
#include <cstring>
#include <string_view>

#include "base/log.h"

namespace pagoda {

namespace {

// White_Space of the Unicode Character Database (PropList.txt).
constexpr const char* kSpace =
    "\\t-\\r\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";
// Oniguruma's word: Alphabetic, M, Nd, Pc, and Latin-1's superscripts and fractions.
constexpr const char* kWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

bool is_in(char c, const char* set) { return c != '\0' && std::strchr(set, c) != nullptr; }
bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)); }

class Translation {
 public:
  explicit Translation(const std::string& pattern) : in_(pattern) {}

  // "" or the construct that is not known.
  std::string run() {
    if (folds_into_one_letter()) return "(?i:";
    while (at_ < in_.size() && unknown_.empty()) {
      if (in_class_) {
        class_member();
      } else {
        item();
      }
    }
    if (in_class_ && unknown_.empty()) return "[ without ]";
    return unknown_;
  }
  const std::string& out() const { return out_; }

 private:
  char peek(size_t k = 0) const { return at_ + k < in_.size() ? in_[at_ + k] : '\0'; }
  bool follows(std::string_view text) const { return in_.substr(at_, text.size()) == text; }
  void copy(size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }
  void emit(const std::string& text, size_t consumed) {
    out_ += text;
    at_ += consumed;
  }
  void refuse(size_t length) { unknown_ = std::string(in_.substr(at_, length)); }

  // Whether letters that a single one is equal to ("ss" to U+00DF, "fi" to U+FB01) may be matched
  // without regard to case: Oniguruma takes the single one then, PCRE2 does not.
  bool folds_into_one_letter() const {
    if (in_.find("(?i:") == std::string_view::npos) return false;
    std::string lower(in_);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const char* letters : {"ss", "st", "ff", "fi", "fl"}) {
      if (lower.find(letters) != std::string::npos) return true;
    }
    return false;
  }

  void item() {
    const char c = peek();
    if (c == '\\') {
      escape();
    } else if (c == '[') {
      open_class();
    } else if (c == '(') {
      group();
    } else if (follows("{,") || follows("}+")) {
      refuse(2);  // {0,n} and a repeat in one syntax, text and possession in the other
    } else {
      copy(1);
    }
  }

  void group() {
    if (follows("(*")) return refuse(2);
    if (peek(1) != '?') return copy(1);
    for (const char* kind : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"}) {
      if (follows(kind)) return copy(std::strlen(kind));
    }
    refuse(4);
  }

  void open_class() {
    in_class_ = true;
    copy(peek(1) == '^' ? 2 : 1);
    if (peek() == ']') refuse(1);
  }

  void class_member() {
    const char c = peek();
    if (c == ']') {
      in_class_ = false;
      copy(1);
    } else if (c == '[' || follows("&&")) {
      refuse(2);  // nested classes and intersections
    } else if (c == '\\') {
      const bool is_set = is_in(peek(1), "sSdDpP");
      // A set at either end of a range: text in one syntax, an error in the other.
      if (is_set && at_ > 1 && in_[at_ - 1] == '-' && in_[at_ - 2] != '[' && in_[at_ - 2] != '^') {
        return refuse(2);
      }
      escape();
      if (is_set && peek() == '-' && peek(1) != ']') refuse(2);
    } else {
      copy(1);
    }
  }

  void escape() {
    const char c = peek(1);
    const auto set = [&](const char* members, bool negated) {
      if (in_class_) return emit(members, 2);
      emit(std::string(negated ? "[^" : "[") + members + "]", 2);
    };
    if (c == 's') return set(kSpace, false);
    if (c == 'S') return in_class_ ? emit("\\P{White_Space}", 2) : set(kSpace, true);
    if (is_in(c, "wW") && !in_class_) return set(kWord, c == 'W');
    if (c == 'p' || c == 'P') return property();
    if (c == 'u' || c == 'x') return code_point();
    const bool anchor = !in_class_ && (c == 'A' || c == 'z');
    const bool mark = std::ispunct(static_cast<unsigned char>(c)) || c == ' ';
    if (anchor || mark || is_in(c, "dDrntf")) return copy(2);
    refuse(2);
  }

  void property() {
    size_t length = 3;
    while (is_name(peek(length))) ++length;
    if (peek(2) != '{' || peek(length) != '}' || length == 3) return refuse(3);
    // Longer names than a general category's are scripts; alone PCRE2 would take script extensions.
    const std::string name(in_.substr(at_ + 3, length - 3));
    if (name.size() <= 2) return copy(length + 1);
    emit(std::string("\\") + peek(1) + "{sc:" + name + "}", length + 1);
  }

  // \xHH, \x{H...} or \uHHHH
  void code_point() {
    const bool braces = follows("\\x{");
    size_t length = braces ? 3 : 2;
    const size_t digits = length, most = braces ? 6 : peek(1) == 'u' ? 4 : 2;
    while (length - digits < most && is_hex(peek(length))) ++length;
    const bool whole = braces ? length > digits && peek(length) == '}' : length - digits == most;
    if (!whole) return refuse(length);
    const std::string hex(in_.substr(at_ + digits, length - digits));
    emit("\\x{" + hex + "}", length + (braces ? 1 : 0));
  }

  const std::string_view in_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_, unknown_;
};

}  // namespace

Result<std::string> pcre2_pattern(const std::string& pattern, const std::string& where) {
  Translation translation(pattern);
  const std::string unknown = translation.run();
  if (unknown.empty()) return translation.out();
  return Status(Exit::kBadData,
                strf("%s: \"%s\" in the pattern \"%s\" is not known to pagoda", where.c_str(),
                     printable(unknown).c_str(), printable(pattern).c_str()));
}

}  // namespace pagoda
