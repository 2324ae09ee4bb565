#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace pagoda {
namespace {

std::mutex log_mutex;            // guards status_line and the order of writes to stderr
std::string status_line;
std::atomic<bool> log_quiet{false};

constexpr size_t kMaxLine = 10000;

void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void write_line(const std::string& text) {
  const std::string line = printable(text, kMaxLine);
  std::lock_guard lock(log_mutex);
  if (status_line.empty()) return write_stderr(line + "\n");
  write_stderr("\r\033[K" + line + "\n" + status_line);
}

}  // namespace

void log_info(const std::string& line) {
  if (!log_quiet) write_line(line);
}

void log_warn(const std::string& line) { write_line("warning: " + line); }

void set_log_quiet(bool quiet) { log_quiet = quiet; }

bool log_is_terminal() {
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  return terminal;
}

void set_status_line(const std::string& text) {
  if (!log_is_terminal() || log_quiet) return;
  std::lock_guard lock(log_mutex);
  write_stderr("\r\033[K" + text);
  status_line = text;
}

}  // namespace pagoda
