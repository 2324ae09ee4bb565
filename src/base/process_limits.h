// Limits that the shell or the system sets for this process (getrlimit), for the case that one is
// too low for the program, or is used up.
#pragma once

#include <string>

#include "base/status.h"

namespace pagoda {

// Gives threads that start from now on stacks of a fixed size, whatever the limit of the first
// thread's stack. Call it before any thread starts.
void set_thread_stacks();

// kHostMemory when the first thread's stack (RLIMIT_STACK) or all of the program's addresses
// (RLIMIT_AS) may not be large enough, kUnavailable when too few files may be open (RLIMIT_NOFILE).
Status check_process_limits();

// The advice for a file that could not be opened, by errno: `usually`, unless too many files are
// open.
std::string remedy_of_open(int error, const char* usually);

}  // namespace pagoda
