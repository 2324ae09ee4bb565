#include "base/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "base/log.h"

namespace pagoda {
namespace {

std::atomic<int> requested{0};  // the only thing the handler touches

void on_signal(int signal) {
  if (requested.exchange(signal) != 0) _exit(128 + signal);
}

void handle(int signal) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  if (sigaction(signal, &action, nullptr) != 0) log_warn("a signal handler could not be set");
}

}  // namespace

void install_stop_signals() {
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) handle(signal);
}

int stop_requested() { return requested; }

Status stop_status(const char* what) {
  const int signal = stop_requested();
  if (signal == 0) return Status();
  return Status(exit_of_signal(signal), strf("stopped by signal %d while %s; nothing was saved, "
                                             "start it again", signal, what));
}

void request_stop(int signal) { requested = signal; }

}  // namespace pagoda
