#include "data/json_rows.h"

#include "base/log.h"
#include "base/utf8.h"
#include "model/json.h"

namespace pagoda {

namespace {

using RowVisitor = std::function<Status(const RowPlace&, const Json&)>;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Collects the bytes of one row and parses it.
class RowText {
 public:
  RowText(const std::string& path, TextFormat format, const RowVisitor& visit)
      : place_{path, format, 0}, visit_(visit) {}

  const RowPlace& place() const { return place_; }
  void begin() {
    ++place_.number;
    text_.clear();
  }
  Status append(std::string_view bytes) {
    if (static_cast<int64_t>(text_.size() + bytes.size()) > kMaxRowBytes) {
      return place_.bad(strf("longer than %lld bytes", (long long)kMaxRowBytes));
    }
    text_.append(bytes);
    return Status();
  }
  bool blank() const {
    for (const char c : text_) {
      if (!is_space(c)) return false;
    }
    return true;
  }
  Status end() {
    const size_t invalid = first_invalid_utf8(text_);
    if (invalid != std::string::npos) {
      return place_.bad(strf("byte %zu: invalid UTF-8", invalid + 1));
    }
    const JsonLimits limits{.max_bytes = kMaxRowBytes, .max_string_bytes = kMaxRowBytes};
    ASSIGN_OR_RETURN(const Json row, parse_json(text_, place_.text(), limits));
    place_.source = text_;
    return visit_(place_, row);
  }

 private:
  RowPlace place_;
  const RowVisitor& visit_;
  std::string text_;
};

// Cuts blocks into lines.
class LineCutter {
 public:
  LineCutter(const std::string& path, const RowVisitor& visit)
      : row_(path, TextFormat::kJsonLines, visit) {
    row_.begin();
  }

  Status add(std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t newline = bytes.find('\n');
      RETURN_IF_ERROR(row_.append(bytes.substr(0, newline)));
      if (newline == std::string_view::npos) return Status();
      RETURN_IF_ERROR(finish());
      row_.begin();
      bytes.remove_prefix(newline + 1);
    }
    return Status();
  }
  // Also at the end of the file, for a last line without newline.
  Status finish() { return row_.blank() ? Status() : row_.end(); }

 private:
  RowText row_;
};

// Cuts an array into its elements, by counting brackets outside strings; the row's own parser is
// the judge of what lies between.
class ElementCutter {
 public:
  ElementCutter(const std::string& path, const RowVisitor& visit)
      : row_(path, TextFormat::kJsonArray, visit) {}

  Status add(std::string_view bytes) {
    while (!bytes.empty()) {
      if (state_ == State::kInside) {
        RETURN_IF_ERROR(inside(bytes));
        continue;
      }
      const char c = bytes.front();
      if (!is_space(c)) RETURN_IF_ERROR(between(c));
      if (state_ != State::kInside) bytes.remove_prefix(1);
    }
    return Status();
  }
  Status finish() const {
    if (state_ == State::kEnd) return Status();
    return row_.place().bad("the array ends in the middle");
  }

 private:
  enum class State : uint8_t { kBegin, kFirst, kInside, kComma, kNext, kEnd };

  Status between(char c) {
    const RowPlace& place = row_.place();
    switch (state_) {
      case State::kBegin:
        if (c != '[') {
          return place.bad("is no array of objects; where each line is an object, name the file "
                           ".jsonl");
        }
        state_ = State::kFirst;
        return Status();
      case State::kComma:
        if (c != ',' && c != ']') return place.bad("a comma or the array's end is missing behind");
        state_ = c == ',' ? State::kNext : State::kEnd;
        return Status();
      case State::kFirst:
      case State::kNext:
        if (c == ']' && state_ == State::kFirst) {
          state_ = State::kEnd;
          return Status();
        }
        row_.begin();
        if (c != '{') return place.bad("is no object");
        state_ = State::kInside;
        return Status();
      default:
        return place.bad("something follows behind the array");
    }
  }
  // Takes bytes up to the end of the element, or all.
  Status inside(std::string_view& bytes) {
    size_t at = 0;
    for (; at < bytes.size() && state_ == State::kInside; ++at) step(bytes[at]);
    RETURN_IF_ERROR(row_.append(bytes.substr(0, at)));
    bytes.remove_prefix(at);
    return state_ == State::kInside ? Status() : row_.end();
  }
  void step(char c) {
    if (in_string_) {
      const bool escaped = escape_;
      escape_ = c == '\\' && !escaped;
      in_string_ = c != '"' || escaped;
      return;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if ((c == '}' || c == ']') && --depth_ == 0) state_ = State::kComma;
  }

  RowText row_;
  State state_ = State::kBegin;
  int64_t depth_ = 0;
  bool in_string_ = false, escape_ = false;
};

template <typename Cutter>
Status cut_rows(const std::string& path, const RowVisitor& visit) {
  Cutter cutter(path, visit);
  RETURN_IF_ERROR(read_blocks(path, [&](std::string_view block) { return cutter.add(block); }));
  return cutter.finish();
}

}  // namespace

std::string RowPlace::text() const { return path + suffix(); }

std::string RowPlace::suffix() const {
  if (number == 0) return "";
  return strf(format == TextFormat::kJsonLines ? ":%lld" : ": row %lld", (long long)number);
}

Status RowPlace::bad(const std::string& why, const char* remedy) const {
  return Status(Exit::kBadData,
                printable(path) + suffix() + ": " + why + "; nothing was trained, " + remedy);
}

Status read_json_rows(const std::string& path, const RowVisitor& visit) {
  ASSIGN_OR_RETURN(const TextFormat format, text_format(path));
  CHECK(format != TextFormat::kPlain);
  return format == TextFormat::kJsonLines ? cut_rows<LineCutter>(path, visit)
                                          : cut_rows<ElementCutter>(path, visit);
}

}  // namespace pagoda
