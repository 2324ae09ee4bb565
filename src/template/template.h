// Chat templates in Jinja, as Transformers runs them: Jinja2 with its sandbox of immutable values,
// trim_blocks and lstrip_blocks, the loop controls, and the tag "generation". A template from
// outside may be hostile: it has bounds of size (here and in template/parser.h), of time and of
// memory (template/budget.h), reads nothing but its variables, and ends in a text or in an error.
// Sources: Jinja2 3.1's documentation and behaviour; Transformers' "Writing a chat template".
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "template/budget.h"
#include "template/value.h"

namespace pagoda::jinja {

inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
inline constexpr size_t kMaxTextBytes = 16'000'000;  // of what is rendered
// Expressions, blocks and calls of macros in each other while a template runs.
inline constexpr int kMaxRunningDepth = 600;

// A day of the calendar.
struct Date {
  int year = 1970, month = 1, day = 1;
  // "2026-11-23", a day that there is; kBadData else.
  static Result<Date> parse(const std::string& text);
  std::string text() const;
};

struct Rendered {
  std::string text;
  // Bytes of text that {% generation %} encloses, [begin, end), in order. Blocks inside a macro or
  // a {% set %} are not among them, as they have no place yet.
  std::vector<std::pair<size_t, size_t>> generated;
};

using Variables = std::vector<std::pair<std::string, Value>>;

// A parsed template; copies share it, and any number of threads may render.
class Template {
 public:
  // kBadData "line 3: WHY", which is printable(): not UTF-8, too large, malformed, or with
  // something that is not known here.
  static Result<Template> parse(const std::string& source);

  bool marks_generation() const;  // it has a {% generation %} block
  // kBadData "line 3: WHY", which is printable(): raise_exception(), something undefined is used,
  // a value of the wrong type, a bound is reached. `today` is what strftime_now() tells. What it
  // takes, it takes from `left` too, if that is given, and fails where that is not enough.
  Result<Rendered> render(const Variables& variables, const Date& today,
                          Bounds* left = nullptr) const;

 private:
  struct Tree;
  std::shared_ptr<const Tree> tree_;
};

}  // namespace pagoda::jinja
