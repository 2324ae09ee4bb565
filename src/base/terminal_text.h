// Text from outside (paths, data, what a model writes) on its way to a terminal, which would obey
// what it takes for commands: control characters, and marks that turn the direction of writing.
#pragma once

#include <string>
#include <string_view>

namespace pagoda {

// The text with these shown: controls below 80 and bytes that are no UTF-8 as \x1b, controls from
// U+0080 on and marks of direction as \u202e, which inside of a JSON or TOML string is the same
// character. Line feeds and tabs stay; so does everything else, and so what is already shown.
std::string terminal_text(std::string_view text);

// Writes a result, whole lines, to standard output as terminal_text(). Errors stay with the stream.
void print_result(std::string_view text);

}  // namespace pagoda
