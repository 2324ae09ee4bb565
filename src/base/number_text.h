// Numbers to text and back, exactly and independent of the locale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pagoda {

// The whole of `text` as a number; false when it is not one or does not fit. Reals are finite.
bool parse_int64(std::string_view text, int64_t& value);
bool parse_real(std::string_view text, double& value);

// The shortest text that parses back to the same double, marked as a real: "1.0", "1e-05".
std::string real_text(double value);

}  // namespace pagoda
