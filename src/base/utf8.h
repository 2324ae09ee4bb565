// UTF-8 as the Unicode Standard defines it (section 3.9, table 3-7): no overlong forms, no
// surrogates, nothing above U+10FFFF.
#pragma once

#include <string_view>

namespace pagoda {

// Offset of the first byte that begins no well-formed sequence, or npos when all is well.
size_t first_invalid_utf8(std::string_view text);

}  // namespace pagoda
