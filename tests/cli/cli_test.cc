// Runs the built program: exit codes, one-line messages, help and version.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class CliTest : public testing::Test {
 protected:
  // Results go to `out`, or to a file that is read back.
  Outcome run(std::vector<std::string> words, std::string out = "") {
    words.insert(words.begin(), PAGODA_BINARY);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (out.empty()) out = dir_.file("stdout");
    const std::string err = dir_.file("stderr");
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    CHECK(posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), flags, 0600) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), flags, 0600) == 0);
    pid_t child = 0;
    CHECK(posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    const bool is_file = std::filesystem::is_regular_file(out);
    return {WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state),
            is_file ? get_file(out) : "", get_file(err)};
  }

  // The run ends with `code`, nothing on stdout, and one line "pagoda: ..." holding `names`.
  void expect_refused(const std::vector<std::string>& words, int code, const std::string& names) {
    const Outcome outcome = run(words);
    std::string command;
    for (const std::string& word : words) command += word + " ";
    EXPECT_EQ(outcome.code, code) << command << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << command;
    EXPECT_TRUE(outcome.err.starts_with("pagoda: ")) << command << "\n" << outcome.err;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << command << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(names), std::string::npos) << command << "\n" << outcome.err;
  }

  std::string run_file(const std::string& text) {
    const std::string path = dir_.file("run.toml");
    put_file(path, text);
    return path;
  }

  TempDir dir_;
};

TEST_F(CliTest, WrongCommandLines) {
  expect_refused({}, 2, "no command given");
  expect_refused({"trian"}, 2, "did you mean \"train\"?");
  expect_refused({"--versoin"}, 2, "did you mean \"--version\"?");
  expect_refused({"--json"}, 2, "no command given");
  expect_refused({"--version", "--foo"}, 2, "--foo");
  expect_refused({"ckpt"}, 2, "no command given");
  expect_refused({"ckpt", "lss"}, 2, "did you mean \"ls\"?");
  expect_refused({"ckpt", "ls"}, 2, "run");
  expect_refused({"ckpt", "ls", "a", "b"}, 2, "unexpected argument \"b\"");
  expect_refused({"init", "--seed", "3", "--out", "x"}, 2, "--config");
  expect_refused({"init", "--config", "c", "--out", "x", "--seed", "-4"}, 2, "--seed");
  expect_refused({"init", "--config", "c", "--out", "x", "--seed", "many"}, 2, "--seed");
  expect_refused({"export", "--out", "x"}, 2, "--checkpoint");
  expect_refused({"export", "--out", "x", "--checkpoint", "r", "--step", "-1"}, 2, "--step");
  expect_refused({"export", "--out", "x", "--checkpoint", "r", "--dtype", "fp16"}, 2, "--dtype");
  const std::vector<std::string> upcycle = {"upcycle", "--from", "d", "--out", "x", "--experts"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), upcycle.begin(), upcycle.end());
    return more;
  };
  expect_refused({"upcycle", "--from", "d", "--out", "x"}, 2, "--experts");
  expect_refused(with({"0", "--top-k", "1"}), 2, "--experts: must be from 1 to 4096");
  expect_refused(with({"5000", "--top-k", "2"}), 2, "--experts: must be from 1 to 4096");
  expect_refused(with({"5000", "--top-k", "4999"}), 2, "--experts: must be from 1 to 4096");
  expect_refused(with({"4", "--top-k", "5"}), 2, "--top-k: must be at least 1 and at most");
  expect_refused(with({"4", "--top-k", "2", "--noise", "-1"}), 2, "--noise");
  expect_refused(with({"4", "--top-k", "2", "--noise", "nan"}), 2, "--noise");
  expect_refused(with({"4", "--top-k", "2", "--seed", "-1"}), 2, "--seed");
  expect_refused(with({"4", "--top-k", "2"}), 66, "d/config.json");
  expect_refused({"eval"}, 2, "--model.path or --checkpoint");
  expect_refused({"eval", "--model.path", "m"}, 2, "--data.eval_path");
  expect_refused({"eval", "--checkpoint", dir_.file("none")}, 66, "no such folder");
  expect_refused({"doctor", "--dir", dir_.file("none")}, 66, "no such folder");
  expect_refused({"doctor", "\033[31m"}, 2, "\\x1b[31m");
}

TEST_F(CliTest, WrongTrainFlags) {
  expect_refused({"train"}, 2, "model.path is missing");
  expect_refused({"train", "--train.stepz", "5"}, 2, "did you mean \"--train.steps\"?");
  expect_refused({"train", "--steps=5"}, 2, "did you mean \"--train.steps\"?");
  expect_refused({"train", "--train.steps", "abc"}, 2,
                 "train.steps: \"abc\" is not a whole number");
  expect_refused({"train", "--train.steps"}, 2, "--train.steps");
  expect_refused({"train", "--train.steps", "5", "--train.steps", "6"}, 2, "--train.steps");
  expect_refused({"train", "--train.dtype", "fp16"}, 2, "one of fp32, bf16");
  expect_refused({"train", "--memory.device", "120%"}, 2, "memory.device");
  expect_refused({"train", "--data.path", "--model.path", "m"}, 2, "a value is missing");
  expect_refused({"train", "--train.output_dir", "-q"}, 2,
                 "--train.output_dir: a value is missing before -q");
  expect_refused({"train", "--train.output_dir", "--train.steps=5"}, 2, "before --train.steps=5");
  expect_refused({"export", "--checkpoint", "r", "--out", "--step"}, 2, "before --step");
  // Texts are no flags.
  for (const char* text : {"- a list", "--", "-x", "2+2=", "--so=", "--- title ---"}) {
    expect_refused({"train", std::string("--sample.prompts=") + text}, 2, "model.path is missing");
    if (std::string(text) == "--so=") continue;  // a flag when it is a word of its own
    expect_refused({"train", "--sample.prompts", text}, 2, "model.path is missing");
  }
  expect_refused({"train", "--sample.prompts", "caf\xe9"}, 2,
                 "sample.prompts: \"caf\uFFFD\" is not valid UTF-8");
  expect_refused({"train", "--optim.weight_decay", "-.5"}, 2, "model.path is missing");
  expect_refused({"train", "--data.path=", "--model.path", "m"}, 2, "a value is missing");
  expect_refused({"train", dir_.file("none.toml")}, 66, "No such file");
  expect_refused({"train", dir_.path()}, 66, "is a folder");
  expect_refused({"train", "a.toml", "b.toml"}, 2, "unexpected argument \"b.toml\"");
}

// A run file is for several commands, and a flag is for one.
TEST_F(CliTest, FlagsThatACommandDoesNotRead) {
  expect_refused({"generate", "--model.path", "m", "--prompt", "a", "--train.devices", "cpu*2",
                  "--parallel.layout", "pipeline"},
                 2, "generate does not read --parallel.layout; leave it out");
  expect_refused({"eval", "--model.path", "m", "--data.eval_path", "t", "--parallel.copies=2"}, 2,
                 "eval does not read --parallel.copies;");
  expect_refused({"eval", "--trace-steps", "1:2"}, 2, "eval does not read --train.trace_steps;");
  expect_refused({"data", "inspect", "--train.steps", "5"}, 2,
                 "data inspect does not read --train.steps;");
  const std::string of_train = run_file("[parallel]\nlayout = \"pipeline\"\ncopies = 2\n");
  expect_refused({"generate", of_train}, 2, "--model.path or --checkpoint");
}

TEST_F(CliTest, WrongRunFiles) {
  const std::string unknown = run_file("[train]\nstepz = 5\n");
  expect_refused({"train", unknown}, 2,
                 unknown + ":2:1: unknown key train.stepz, did you mean \"train.steps\"?");
  expect_refused({"eval", unknown}, 2, unknown + ":2:1:");
  const std::string wrong = run_file("[train]\nsteps = \"5\"\n");
  expect_refused({"train", "--train.steps", "5", wrong}, 2, wrong + ":2:9:");
  const std::string twice = run_file("[train]\nsteps = 5\nsteps = 6\n");
  expect_refused({"train", twice}, 2, twice + ":3:9:");
  const std::string uneven = run_file(
      "[model]\npath=\"m\"\n[data]\npath=\"d\"\n[train]\n"
      "output_dir=\"o\"\ntokens_per_step = 5000\n");
  expect_refused({"train", uneven}, 2, "train.tokens_per_step = 5000");
}

TEST_F(CliTest, HelpShowsDefaultsAndUnits) {
  const Outcome all = run({"--help"});
  EXPECT_EQ(all.code, 0);
  EXPECT_EQ(all.err, "");
  for (const char* word :
       {"train", "init", "upcycle", "eval", "export", "ckpt", "doctor", "bench",
        "--version", "Exit codes"}) {
    EXPECT_NE(all.out.find(word), std::string::npos) << word;
  }
  const Outcome train = run({"train", "--help"});
  EXPECT_EQ(train.code, 0);
  for (const char* word : {"--train.steps INT", "(steps; default 1000)", "--optim.learning_rate",
                           "(default 1e-05)", "Optimizer (AdamW):", "--chat-template",
                           "constant|linear|cosine", "output_router_logits"}) {
    EXPECT_NE(train.out.find(word), std::string::npos) << word;
  }
  const Outcome eval = run({"eval", "--help"});
  EXPECT_EQ(eval.code, 0);
  EXPECT_NE(eval.out.find("--data.eval_path"), std::string::npos);
  EXPECT_EQ(eval.out.find("--optim.beta1"), std::string::npos) << "eval does not read it";
  EXPECT_EQ(run({"ckpt", "verify", "--help"}).code, 0);
}

// Every help ends with the page that says more and the codes, those of nested commands too.
TEST_F(CliTest, HelpNamesItsPage) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> pages = {
      {{}, "More: README.md"},
      {{"plan"}, "More: docs/plan.md\n"},
      {{"bench", "disk"}, "More: docs/bench.md\n"},
      {{"bench", "machine"}, "More: docs/bench.md\n"},
      {{"ckpt", "ls"}, "More: docs/reliability.md\n"},
  };
  for (const auto& [command, page] : pages) {
    std::vector<std::string> words = command;
    words.push_back("--help");
    const std::string help = run(words).out;
    EXPECT_NE(help.find(page), std::string::npos) << help;
    EXPECT_NE(help.find(" 75  stopped with a valid checkpoint"), std::string::npos) << help;
  }
}

// A result that did not arrive is no success.
TEST_F(CliTest, ResultsThatCannotBeWritten) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--version"}, {"train", "--help"}, {"doctor", "--json"}}) {
    const Outcome outcome = run(words, "/dev/full");
    EXPECT_EQ(outcome.code, 74) << words.front();
    EXPECT_NE(outcome.err.find("pagoda: standard output: cannot write"), std::string::npos)
        << outcome.err;
  }
}

TEST_F(CliTest, Version) {
  const Outcome text = run({"--version"});
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(text.out.starts_with("pagoda " PAGODA_VERSION " (")) << text.out;
  const Outcome json = run({"--version", "--json"});
  EXPECT_EQ(json.code, 0);
  const nlohmann::json object = nlohmann::json::parse(json.out);
  EXPECT_EQ(object["version"], PAGODA_VERSION);
  EXPECT_TRUE(object["onednn"].is_boolean());
  EXPECT_FALSE(object["compiler"].get<std::string>().empty());
  EXPECT_FALSE(object["liburing_version"].get<std::string>().empty());
  const std::string set = object["kernel_set"].get<std::string>();
  EXPECT_NE(set.find('/'), std::string::npos) << set;
  EXPECT_NE(text.out.find("kernel set " + set), std::string::npos) << text.out;
}

TEST_F(CliTest, DoctorReportsAndLeavesNothingBehind) {
  const std::string folder = dir_.file("disk");
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  const Outcome json = run({"doctor", "--json", "--dir", folder});
  ASSERT_EQ(json.code, 0) << json.err;
  const nlohmann::json object = nlohmann::json::parse(json.out);
  EXPECT_GE(object["cores"].get<int>(), 1);
  EXPECT_GT(object["memory_total_bytes"].get<int64_t>(), 0);
  EXPECT_GT(object["disk_total_bytes"].get<int64_t>(), 0);
  EXPECT_TRUE(object["direct_io"]["usable"].is_boolean());
  EXPECT_FALSE(object["uring"]["text"].get<std::string>().empty());
  EXPECT_TRUE(object["gpus"].is_array());
  const bool cuda = object["cuda"]["usable"].get<bool>();
  EXPECT_EQ(object["cuda"]["text"].get<std::string>().empty(), cuda) << json.out;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  const Outcome text = run({"doctor", "--dir", folder});
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find(object["kernel_set"].get<std::string>()), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("usable cores"), std::string::npos) << text.out;
}

}  // namespace
}  // namespace pagoda
