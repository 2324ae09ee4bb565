// Checks the options of `pagoda bench`. kUsage naming the flag, kNoInput for a folder.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"

namespace pagoda {

inline constexpr int64_t kMaxRounds = 1000;
inline constexpr int64_t kMaxArrayBytes = int64_t{1} << 40;

// A size from `lowest` to `highest` bytes.
Result<int64_t> parse_size(const char* flag, const std::string& text, int64_t lowest,
                           int64_t highest);

// Checks that --dir is a folder.
Status check_folder(const std::string& directory);

Status check_range(const char* flag, int64_t value, int64_t highest);

// The value whose name is `text`.
template <typename E>
Result<E> parse_choice(const char* flag, const std::string& text,
                       const std::vector<std::pair<const char*, E>>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names += std::string(names.empty() ? "" : ", ") + name;
  }
  return Status(Exit::kUsage, strf("%s: \"%s\" must be one of %s", flag, printable(text).c_str(),
                                   names.c_str()));
}

}  // namespace pagoda
