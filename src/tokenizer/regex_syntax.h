// Translates regular expressions of tokenizer.json (Oniguruma, Ruby syntax) into PCRE2's syntax. It
// accepts only constructs that both read alike or that can be rewritten exactly.
#pragma once

#include <string>

#include "base/status.h"

namespace pagoda {

// The pattern for PCRE2 with UTF, UCP and MULTILINE. \s, \w and scripts get Oniguruma's meaning
// (PCRE2's \s holds U+180E, its \w no marks, its \p{Han} also what is used with Han). kBadData
// names a construct that is not known; `where` begins the message. REQUIRES: well-formed UTF-8.
Result<std::string> pcre2_pattern(const std::string& pattern, const std::string& where);

}  // namespace pagoda
