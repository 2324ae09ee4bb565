// SIGINT, SIGTERM and SIGUSR1 ask a run to stop: the first sets a flag that is looked at between
// steps and in long work outside of them, the second leaves the process at once with 128 + signal
// (the last checkpoint is intact). main handles signals that the whole program ignores.
#pragma once

#include "base/status.h"

namespace pagoda {

void install_stop_signals();
// The signal that asked the run to stop, 0 while none has. Any thread.
int stop_requested();
// Once a signal has asked: exit_of_signal(), naming the signal and `what` it interrupted. For long
// work between steps, where nothing is to be saved.
Status stop_status(const char* what);
// Acts as if `signal` had arrived, for tests; 0 withdraws it.
void request_stop(int signal);

}  // namespace pagoda
