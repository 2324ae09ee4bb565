// Flags that have a value unless they are given one. Their help ends in that value, which stands
// nowhere but where the variable begins with it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {

inline std::string value_text(int64_t value) { return std::to_string(value); }
inline std::string value_text(double value) { return strf("%g", value); }
inline std::string value_text(const std::string& value) { return value; }
template <typename T>
std::string value_text(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : " ") + value_text(value);
  return text;
}

// `value` holds the default, and lives as long as `app`.
template <typename T>
CLI::Option* add_value(CLI::App& app, const char* flag, T& value, const std::string& help) {
  return app.add_option(flag, value, help + " (default " + value_text(value) + ")");
}

}  // namespace pagoda
