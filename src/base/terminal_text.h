// Makes text from outside (paths, data, a model's output) safe for a terminal, which would obey
// control characters and marks that turn the direction of writing.
#pragma once

#include <string>
#include <string_view>

namespace pagoda {

// Escapes these characters: controls below 80 and bytes that are no UTF-8 as \x1b, controls from
// U+0080 on and marks of direction as \u202e, which inside a JSON or TOML string is the same
// character. Everything else stays, line feeds, tabs and escapes included.
std::string terminal_text(std::string_view text);

// Writes a result, whole lines, to standard output through terminal_text(). Errors stay with the
// stream.
void print_result(std::string_view text);

}  // namespace pagoda
