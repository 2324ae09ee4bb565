// Normalization form C (Unicode Standard Annex 15) with what each code point was made from. The
// data is utf8proc's.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/aligned_text.h"

namespace pagoda {

// Whether the text is in the form for a cheap reason: no code point in it can be changed by it.
bool surely_nfc(std::string_view text);

// The text's code points in form C. REQUIRES: well-formed UTF-8.
std::vector<ChangedCodePoint> nfc(std::string_view text);

}  // namespace pagoda
