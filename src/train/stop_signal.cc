#include "train/stop_signal.h"

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

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  if (sigaction(signal, &action, nullptr) != 0) log_warn("a signal handler could not be set");
}

}  // namespace

void install_stop_signals() {
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) handle(signal, on_signal);
  for (int signal : {SIGHUP, SIGPIPE, SIGXFSZ}) handle(signal, SIG_IGN);
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
