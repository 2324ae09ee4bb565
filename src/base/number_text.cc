#include "base/number_text.h"

#include <charconv>
#include <cmath>

namespace pagoda {
namespace {

template <typename T>
bool parse_whole(std::string_view text, T& value) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) return false;
  }
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  value = parsed;
  return true;
}

}  // namespace

bool parse_int64(std::string_view text, int64_t& value) { return parse_whole(text, value); }

bool parse_real(std::string_view text, double& value) {
  double parsed = 0;
  if (!parse_whole(text, parsed) || !std::isfinite(parsed)) return false;
  value = parsed;
  return true;
}

std::string real_text(double value) {
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, error == std::errc() ? end : buffer);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace pagoda
