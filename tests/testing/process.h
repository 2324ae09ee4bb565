// The built program as users and machines run it: a process of its own with captured output,
// signals, limits and its peak memory.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tests/testing/files.h"

namespace pagoda {

struct ProcessResult {
  int code = -1;   // exit status, or 128 + the signal that ended it
  int signal = 0;  // that signal; 0: it exited by itself
  std::string out, err;
  // Largest resident set. Counts from the fork on, so it is never less than that of the test
  // itself.
  int64_t peak_rss_bytes = 0;

  // The one line a failure ends with, and nothing but log lines before it; "" when it is not so.
  std::string error_line() const {
    const size_t begin = err.starts_with("pagoda: ") ? 0 : err.find("\npagoda: ") + 1;
    const bool last_line = !err.empty() && err.find('\n', begin) == err.size() - 1;
    return err.find("pagoda: ", begin) == begin && last_line ? err.substr(begin) : "";
  }
};

struct ProcessLimits {
  int64_t file_bytes = -1;     // largest file it may write (RLIMIT_FSIZE); -1: as the test's own
  int64_t address_bytes = -1;  // all it may map (RLIMIT_AS); likewise
};

// One run of a program. wait() must be called before the end of the object, or the process is
// killed.
class Process {
 public:
  // Output goes to PREFIX.out and PREFIX.err.
  Process(std::vector<std::string> words, const std::string& prefix, ProcessLimits limits = {})
      : out_(prefix + ".out"), err_(prefix + ".err") {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    // Before the fork: the files exist however early the child is killed.
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    const int in = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int out = ::open(out_.c_str(), flags, 0600), err = ::open(err_.c_str(), flags, 0600);
    CHECK(in >= 0 && out >= 0 && err >= 0, "cannot open %s", out_.c_str());
    child_ = ::fork();
    CHECK(child_ >= 0, "fork failed");
    if (child_ == 0) become(argv.data(), in, out, err, limits);  // does not return
    for (const int file : {in, out, err}) CHECK(::close(file) == 0);
  }
  ~Process() {
    if (child_ <= 0) return;
    send(SIGKILL);
    wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return child_; }
  void send(int signal) { CHECK(::kill(child_, signal) == 0, "kill(%d) failed", signal); }

  // What it has written to stderr so far.
  std::string err() const { return get_file(err_); }

  // Waits until stderr holds `text`; false when the process has ended, or `limit_s` is over, first.
  bool wait_for_err(const std::string& text, double limit_s = 20) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
    while (std::chrono::steady_clock::now() < deadline) {
      const bool ended = has_ended();
      if (err().find(text) != std::string::npos) return true;
      if (ended) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  bool has_ended() const {
    siginfo_t info = {};
    CHECK(::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) == 0);
    return info.si_pid == child_;
  }

  ProcessResult wait() {
    int state = 0;
    struct rusage usage = {};
    pid_t ended;
    do {
      ended = ::wait4(child_, &state, 0, &usage);
    } while (ended < 0 && errno == EINTR);
    CHECK(ended == child_, "wait4 failed");
    child_ = -1;
    ProcessResult result;
    result.signal = WIFSIGNALED(state) ? WTERMSIG(state) : 0;
    result.code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + result.signal;
    result.out = get_file(out_);
    result.err = get_file(err_);
    result.peak_rss_bytes = usage.ru_maxrss * kKiB;
    return result;
  }

 private:
  static bool set_limit(__rlimit_resource kind, int64_t bytes) {
    const struct rlimit limit = {static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
    return bytes < 0 || ::setrlimit(kind, &limit) == 0;
  }

  // In the child: async-signal-safe calls only.
  [[noreturn]] static void become(char* const* argv, int in, int out, int err,
                                  const ProcessLimits& limits) {
    bool good = ::dup2(in, STDIN_FILENO) >= 0 && ::dup2(out, STDOUT_FILENO) >= 0 &&
                ::dup2(err, STDERR_FILENO) >= 0;
    good = good && set_limit(RLIMIT_FSIZE, limits.file_bytes) &&
           set_limit(RLIMIT_AS, limits.address_bytes);
    if (good) ::execv(argv[0], argv);
    ::_exit(127);
  }

  pid_t child_ = -1;
  std::string out_, err_;
};

}  // namespace pagoda
