// Values as texts, as Python prints them: str(), repr() and json.dumps().
#pragma once

#include <string>

#include "base/status.h"
#include "template/budget.h"
#include "template/value.h"

namespace pagoda::jinja {

struct JsonStyle {
  bool ascii = false;
  bool sorted = false;
  bool lines = false;  // each element on a line of its own, behind `indent` for each level
  std::string indent;
  std::string comma = ", ", colon = ": ";
};

// What {{ value }} prints. kBadData for values whose text has no meaning: a generator, a function.
Result<std::string> text_of(Budget& budget, const Value& value);
Result<std::string> json_of(Budget& budget, const Value& value, const JsonStyle& style);
// The shortest text that reads back as the same number: "0.1", "1e+16", "inf".
std::string real_text(double value);

}  // namespace pagoda::jinja
