// Text in a page of HTML or a drawing in it.
#pragma once

#include <string>

namespace pagoda {

// The text with the characters that HTML would read otherwise as their names.
inline std::string html_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace pagoda
