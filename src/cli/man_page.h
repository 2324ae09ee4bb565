// Texts about the command line that other programs read, all made from the commands and options as
// they are declared: the manual page and the completions of shells.
#pragma once

#include <string>

#include "base/status.h"

namespace CLI {
class App;
}

namespace pagoda {

// The manual page in roff (man(7)): what each command is for and its options; those of a run file
// once, at `train`. REQUIRES: `root` has its commands.
std::string man_page(CLI::App& root);

// A completion for this shell: bash, zsh or fish. Commands, flags and the values of flags that have
// a choice are completed, and paths otherwise. kUsage for another shell.
Result<std::string> completion(CLI::App& root, const std::string& shell);

}  // namespace pagoda
