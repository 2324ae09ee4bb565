#include "tests/testing/ranks/frozen_thread.h"

#include <sys/ptrace.h>
#include <sys/wait.h>

namespace pagoda {

FrozenThread::FrozenThread(int process) : process_(process) {
  if (::ptrace(PTRACE_SEIZE, process, nullptr, nullptr) != 0) return;
  int state = 0;
  ok_ = ::ptrace(PTRACE_INTERRUPT, process, nullptr, nullptr) == 0 &&
        ::waitpid(process, &state, __WALL) == process && WIFSTOPPED(state);
}

FrozenThread::~FrozenThread() { thaw(); }

void FrozenThread::thaw() {
  if (ok_) ::ptrace(PTRACE_DETACH, process_, nullptr, nullptr);
  ok_ = false;
}

bool FrozenThread::is_over() {
  int state = 0;
  const bool over = ok_ && ::waitpid(process_, &state, __WALL | WNOHANG) == process_ &&
                    (WIFEXITED(state) || WIFSIGNALED(state));
  if (over) ok_ = false;
  return over;
}

}  // namespace pagoda
