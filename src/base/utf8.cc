#include "base/utf8.h"

#include <cstddef>

namespace pagoda {

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) -> unsigned {
      return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0;
    };
    const unsigned first = byte(0);
    size_t length = 0;
    unsigned low = 0x80, high = 0xbf;
    if (first < 0x80)
      length = 1;
    else if (first >= 0xc2 && first <= 0xdf)
      length = 2;
    else if (first >= 0xe0 && first <= 0xef)
      length = 3;
    else if (first >= 0xf0 && first <= 0xf4)
      length = 4;
    else
      return false;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
    for (size_t k = 1; k < length; ++k, low = 0x80, high = 0xbf) {
      if (byte(k) < low || byte(k) > high) return false;
    }
    i += length;
  }
  return true;
}

}  // namespace pagoda
