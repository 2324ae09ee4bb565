// What each exit code means: the one table that `pagoda --help` prints and docs/exit-codes.md
// repeats. A test holds enum Exit, this table, the help and the page against each other.
#pragma once

#include <span>
#include <string>

#include "base/status.h"

namespace pagoda {

struct ExitMeaning {
  Exit code;
  const char* text;  // a few words without a full stop
};

// Every code of enum Exit once, in the order of the numbers.
std::span<const ExitMeaning> exit_meanings();

// What 128 + n means, for a run that signal n ended.
inline constexpr const char* kStoppedBySignal = "stopped by signal n with nothing to resume";

// "Exit codes:" and a line for each, 128 + n last; no newline at the end.
std::string exit_codes_text();

}  // namespace pagoda
