// What checks of a configuration share: the refusal of an option's value, and counts that options
// hold as text. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/number_text.h"
#include "base/status.h"

namespace pagoda {

// kUsage, "train.chunks = 3: must divide ...".
inline Status refuse(const std::string& key, const std::string& value, const std::string& why) {
  return Status(Exit::kUsage, key + " = " + value + ": " + why);
}

// 0: the text is no whole number.
inline int64_t count_of(const std::string& text) {
  int64_t count = 0;
  return parse_int64(text, count) ? count : 0;
}
inline std::vector<std::string> texts_of(const std::vector<int64_t>& counts) {
  std::vector<std::string> texts;
  for (const int64_t count : counts) texts.push_back(std::to_string(count));
  return texts;
}

}  // namespace pagoda
