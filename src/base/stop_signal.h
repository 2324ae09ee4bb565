// SIGINT, SIGTERM and SIGUSR1 ask a run to stop: the first sets a flag that is looked at between
// steps and in long work outside of them, the second leaves the process at once with 128 + signal
// (the last checkpoint is intact). Signals that the whole program ignores are main's business.
#pragma once

#include "base/status.h"

namespace pagoda {

void install_stop_signals();
// The signal that asked, 0 while none has. Any thread.
int stop_requested();
// exit_of_signal(), naming the signal and `what` it interrupted, when one has asked; for long work
// between steps, where nothing is to be saved.
Status stop_status(const char* what);
// As if `signal` had arrived; for tests. 0 withdraws it.
void request_stop(int signal);

}  // namespace pagoda
