// Numbers to text and back, exactly and independent of the locale.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace pagoda {

// The whole of `text` as a number; false when it is not one or does not fit. Reals are finite.
bool parse_int64(std::string_view text, int64_t& value);
bool parse_real(std::string_view text, double& value);

// Reads the integers at the front of a text, each of which ends in a space.
class NumberReader {
 public:
  explicit NumberReader(std::string_view text) : text_(text) {}
  // False if the next is none, or not from `least` to `most`.
  template <typename T>
  bool read(T& value, T least, T most) {
    const char* end = text_.data() + text_.size();
    const auto [after, error] = std::from_chars(text_.data(), end, value);
    if (error != std::errc() || after == end || *after != ' ') return false;
    text_.remove_prefix(static_cast<size_t>(after - text_.data()) + 1);
    return value >= least && value <= most;
  }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
};

// The shortest text that parses back to the same double, marked as a real: "1.0", "1e-05".
std::string real_text(double value);

}  // namespace pagoda
