// Parses a template. A tag or a method that is not known here is refused by its name and line, even
// where it would never be reached; a filter or a test is when it is reached.
// Sources: Jinja2 3.1's documentation, "Template Designer Documentation", and what it does.
#pragma once

#include <string>

#include "base/status.h"
#include "template/syntax.h"

namespace pagoda::jinja {

// The depth of expressions and blocks in each other.
inline constexpr int kMaxNesting = 200;

// kBadData "line 3: WHY". REQUIRES: source is well-formed UTF-8.
Result<Body> parse(const std::string& source);

}  // namespace pagoda::jinja
