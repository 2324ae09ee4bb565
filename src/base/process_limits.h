// What the shell or the system lets this process have (getrlimit), where it is less than the
// program cannot do without, or has run out.
#pragma once

#include <string>

#include "base/status.h"

namespace pagoda {

// Gives threads that start from now on a stack of their own size, whatever the limit of the first
// one's is. Before any thread.
void set_thread_stacks();

// kHostMemory when the first thread's stack may not be large enough (RLIMIT_STACK), kUnavailable
// when too few files may be open (RLIMIT_NOFILE).
Status check_process_limits();

// What to do about a file that could not be opened with this errno: `usually`, but for files that
// are too many.
std::string remedy_of_open(int error, const char* usually);

}  // namespace pagoda
