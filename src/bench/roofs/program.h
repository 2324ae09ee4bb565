// Runs another program to its end: a public tool that our rates are compared with.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {

struct ProgramRun {
  int code = 0;        // exit status, or 128 + the signal that ended it
  std::string output;  // stdout and stderr as they came
};

// Runs words[0], found as a shell finds it, with the others as arguments and no input. kUnavailable
// when there is no such program or it cannot be started.
Result<ProgramRun> run_program(const std::vector<std::string>& words);

}  // namespace pagoda
