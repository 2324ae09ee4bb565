// What the built program does where the shell gives it little: one line that names the limit.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/check.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

class ProcessLimitsTest : public RunTest {
 protected:
  // All that a terminal is sent by a run of the program.
  std::string on_terminal(Words words) {
    words = program_ + words;
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
    CHECK(child >= 0, "forkpty failed");
    if (child == 0) {
      execv(argv[0], argv.data());
      _exit(127);
    }
    std::string text;
    char block[4096];
    for (ssize_t n; (n = read(terminal, block, sizeof block)) > 0;) {
      text.append(block, static_cast<size_t>(n));
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && close(terminal) == 0);
    EXPECT_EQ(status, 0) << text;
    return text;
  }
};

TEST_F(ProcessLimitsTest, ASmallStackIsRefusedBeforeAnythingIsWritten) {
  ProcessLimits limits;
  limits.stack_bytes = 64 << 10;  // with 16 KiB the loader itself ends now and then
  expect_refused(run(train(flags("run")), limits), 71,
                 {"64.0 KiB", "RLIMIT_STACK", "ulimit -s 1024"});
  EXPECT_FALSE(fs::exists(dir_.file("run")));
  limits.stack_bytes = 1 << 20;
  const ProcessResult enough = run(train(flags("run")), limits);
  EXPECT_EQ(enough.code, 0) << enough.err;
}

TEST_F(ProcessLimitsTest, FewAddressesAreRefusedBeforeAnythingIsWritten) {
  ProcessLimits limits;
  limits.address_bytes = 200 << 20;
  expect_refused(run(train(flags("run")), limits), 71,
                 {"200.00 MiB", "RLIMIT_AS", "ulimit -v 262144"});
  EXPECT_FALSE(fs::exists(dir_.file("run")));
}

TEST_F(ProcessLimitsTest, FewFilesAreRefusedBeforeAnythingIsWritten) {
  ProcessLimits limits;
  limits.files = 4;
  expect_refused(run(train(flags("run")), limits), 69,
                 {"4 files", "RLIMIT_NOFILE", "ulimit -n 64"});
  EXPECT_FALSE(fs::exists(dir_.file("run")));
  limits.files = 64;
  const ProcessResult enough = run(train(flags("run")), limits);
  EXPECT_EQ(enough.code, 0) << enough.err;
}

// Two prompts are printed before what continues them.
TEST_F(ProcessLimitsTest, ATerminalIsShownWhatAFileGetsAsItIs) {
  const std::string prompt =
      "a\x1b[31m\xE2\x80\xAE"
      "b";
  const Words words = {"generate",
                       "--model.path",
                       dir_.file("model"),
                       "--memory.disk",
                       dir_.path(),
                       "--max_new_tokens",
                       "4",
                       "--prompt",
                       prompt,
                       "--prompt",
                       "c",
                       "-q"};
  const std::string shown = on_terminal(words);
  EXPECT_NE(shown.find("> a\\x1b[31m\\u202eb"), std::string::npos) << shown;
  EXPECT_EQ(shown.find('\x1b'), std::string::npos) << shown;
  EXPECT_NE(run(words).out.find("> " + prompt), std::string::npos);
}

TEST_F(ProcessLimitsTest, PathsInTheLogAreShown) {
  const std::string out = dir_.file("m\x1b[2J\xff");
  const ProcessResult made = run({"init", "--config", dir_.file("config.json"), "--out", out});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.err.find("m\\x1b[2J\\xff"), std::string::npos) << made.err;
  EXPECT_EQ(made.err.find('\x1b'), std::string::npos) << made.err;
  EXPECT_EQ(made.err.find('\xff'), std::string::npos) << made.err;
}

}  // namespace
}  // namespace pagoda
