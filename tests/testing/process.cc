#include "tests/testing/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "tests/testing/files.h"

namespace pagoda {
namespace {

bool set_limit(__rlimit_resource kind, int64_t most) {
  const struct rlimit limit = {static_cast<rlim_t>(most), static_cast<rlim_t>(most)};
  return most < 0 || ::setrlimit(kind, &limit) == 0;
}

// In the child: async-signal-safe calls only.
[[noreturn]] void become(char* const* argv, int in, int out, int err,
                         const ProcessLimits& limits) {
  bool good = ::dup2(in, STDIN_FILENO) >= 0 && ::dup2(out, STDOUT_FILENO) >= 0 &&
              ::dup2(err, STDERR_FILENO) >= 0;
  good = good && set_limit(RLIMIT_FSIZE, limits.file_bytes) &&
         set_limit(RLIMIT_AS, limits.address_bytes) &&
         set_limit(RLIMIT_STACK, limits.stack_bytes) && set_limit(RLIMIT_NOFILE, limits.files);
  // What the test's own parent left open would count against a limit of files.
  if (limits.files > 0) good = good && ::close_range(STDERR_FILENO + 1, ~0U, 0) == 0;
  if (good) ::execv(argv[0], argv);
  ::_exit(127);
}

}  // namespace

std::string ProcessResult::error_line() const {
  const size_t begin = err.starts_with("pagoda: ") ? 0 : err.find("\npagoda: ") + 1;
  const bool last_line = !err.empty() && err.find('\n', begin) == err.size() - 1;
  return err.find("pagoda: ", begin) == begin && last_line ? err.substr(begin) : "";
}

Process::Process(std::vector<std::string> words, const std::string& prefix, ProcessLimits limits)
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

Process::~Process() {
  if (child_ <= 0) return;
  send(SIGKILL);
  wait();
}

void Process::send(int signal) {
  CHECK(::kill(child_, signal) == 0, "kill(%d) failed", signal);
}

std::string Process::err() const { return get_file(err_); }

bool Process::wait_for_err(const std::string& text, double limit_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (std::chrono::steady_clock::now() < deadline) {
    const bool ended = has_ended();
    if (err().find(text) != std::string::npos) return true;
    if (ended) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

bool Process::has_ended() const {
  siginfo_t info = {};
  CHECK(::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) == 0);
  return info.si_pid == child_;
}

ProcessResult Process::wait() {
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

}  // namespace pagoda
