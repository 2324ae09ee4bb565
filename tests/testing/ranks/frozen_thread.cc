#include "tests/testing/ranks/frozen_thread.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

namespace pagoda {

bool FrozenThread::is_allowed() {
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  const bool allowed = FrozenThread(child).ok();
  ::kill(child, SIGKILL);
  CHECK(::waitpid(child, nullptr, 0) == child);
  return allowed;
}

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
