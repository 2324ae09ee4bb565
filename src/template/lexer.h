// Divides a template into texts and the tokens of its tags, with Jinja2's rules of whitespace as
// Transformers sets them (trim_blocks, lstrip_blocks, no line break kept at the end).
// Sources: Jinja2 3.1's documentation, "Template Designer Documentation", and what it does.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "template/value.h"

namespace pagoda::jinja {

struct Token {
  enum class Kind : uint8_t {
    kText,        // between tags
    kPrintBegin,  // {{
    kPrintEnd,
    kTagBegin,  // {%
    kTagEnd,
    kName,
    kConstant,  // a string or a number: value
    kSymbol,    // an operator or a bracket: text
    kEnd,
  };
  Kind kind = Kind::kEnd;
  int line = 0;  // from 1
  std::string text;
  Value value;
};

// The tokens, the last of kind kEnd. kBadData "line 3: WHY" where there are none.
// REQUIRES: source is well-formed UTF-8.
Result<std::vector<Token>> divide(const std::string& source);

// True for what str.strip() removes.
bool is_space(uint32_t code_point);
// A text without white space at its sides.
std::string stripped(const std::string& text, bool left, bool right);

// "line 3: WHY" with kBadData.
Status error_at(int line, const std::string& why);

}  // namespace pagoda::jinja
