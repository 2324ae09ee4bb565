// The built program as users and machines run it: a process of its own with captured output,
// signals, limits and its peak memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pagoda {

struct ProcessResult {
  int code = -1;   // exit status, or 128 + the signal that ended it
  int signal = 0;  // the signal that ended it; 0: it exited by itself
  std::string out, err;
  // Largest resident set. Counts from the fork on, so it is never less than that of the test
  // itself.
  int64_t peak_rss_bytes = 0;

  // The one line a failure ends with, and nothing but log lines before it; "" when it is not so.
  std::string error_line() const;
};

struct ProcessLimits {
  int64_t file_bytes = -1;     // largest file it may write (RLIMIT_FSIZE); -1: as the test's own
  int64_t address_bytes = -1;  // all it may map (RLIMIT_AS); -1: as the test's own
  int64_t stack_bytes = -1;    // the first thread's stack (RLIMIT_STACK)
  int64_t files = -1;          // open at a time (RLIMIT_NOFILE)
};

// One run of a program. wait() must be called before the end of the object, or the process is
// killed.
class Process {
 public:
  // Output goes to PREFIX.out and PREFIX.err.
  Process(std::vector<std::string> words, const std::string& prefix, ProcessLimits limits = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return child_; }
  void send(int signal);

  // What it has written to stderr so far.
  std::string err() const;

  // Waits until stderr holds `text`; false when the process has ended, or `limit_s` is over, first.
  bool wait_for_err(const std::string& text, double limit_s = 20);

  bool has_ended() const;

  ProcessResult wait();

 private:
  pid_t child_ = -1;
  std::string out_, err_;
};

}  // namespace pagoda
