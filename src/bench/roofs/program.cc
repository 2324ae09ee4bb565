#include "bench/roofs/program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/descriptor.h"

namespace pagoda {
namespace {

Status refused(const std::string& program, int error) {
  return Status(Exit::kUnavailable, strf("%s cannot be started: %s", program.c_str(),
                                         std::strerror(error)));
}

// Starts the program with both outputs in `output`. Returns 0 or an error number.
int spawn(const std::vector<std::string>& words, int output, pid_t* child) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  if (const int error = posix_spawn_file_actions_init(&actions); error != 0) return error;
  int error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const int target : {STDOUT_FILENO, STDERR_FILENO}) {
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions, output, target);
  }
  if (error == 0) {
    error = posix_spawnp(child, arguments[0], &actions, nullptr, arguments.data(), environ);
  }
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t count = ::read(fd, piece.data(), piece.size());
    if (count > 0) text.append(piece.data(), static_cast<size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) return text;
  }
}

}  // namespace

Result<ProgramRun> run_program(const std::vector<std::string>& words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return refused(words[0], errno);
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  pid_t child = -1;
  if (const int error = spawn(words, write_end.get(), &child); error != 0) {
    return refused(words[0], error);
  }
  if (!write_end.reset()) return refused(words[0], errno);
  ProgramRun run;
  run.output = read_all(read_end.get());
  int state = 0;
  pid_t ended;
  do {
    ended = ::waitpid(child, &state, 0);
  } while (ended < 0 && errno == EINTR);
  CHECK(ended == child, "waitpid: %s", std::strerror(errno));
  run.code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return run;
}

}  // namespace pagoda
