// UTF-8, as strictly as the Unicode standard defines it.
#pragma once

#include <string_view>

namespace pagoda {

// No overlong forms, no surrogates, nothing above U+10FFFF (Unicode 15, table 3-7).
bool is_valid_utf8(std::string_view text);

}  // namespace pagoda
