// Normalization form C (Unicode Standard Annex 15), with the origin of each code point. The data is
// utf8proc's.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/aligned_text.h"

namespace pagoda {

// A cheap test that the text is in form C: normalizing changes none of its code points.
bool surely_nfc(std::string_view text);

// The text's code points in form C. REQUIRES: well-formed UTF-8.
std::vector<ChangedCodePoint> nfc(std::string_view text);

}  // namespace pagoda
