#include <csignal>

#include "cli/commands.h"

int main(int argc, char** argv) {
  // A lost terminal, a closed pipe or a full quota shows as a failed write, not as the end of a
  // run.
  for (const int signal : {SIGPIPE, SIGHUP, SIGXFSZ}) std::signal(signal, SIG_IGN);
  return pagoda::run_command_line(argc, argv);
}
